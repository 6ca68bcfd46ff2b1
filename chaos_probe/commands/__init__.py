"""The commands of ``chaos-probe``; each file is one, loaded when it is called."""
