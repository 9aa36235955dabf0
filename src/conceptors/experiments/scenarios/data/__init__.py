"""Data sets by name: searched on this machine, downloaded, checked and read."""
