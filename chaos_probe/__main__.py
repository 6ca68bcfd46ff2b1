"""``python -m chaos_probe``."""

from chaos_probe.main import main

if __name__ == "__main__":
    main()
