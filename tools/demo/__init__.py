"""The main job on an emulated fleet, as a story on a terminal."""
