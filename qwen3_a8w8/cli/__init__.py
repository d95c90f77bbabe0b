"""The command line `qwen3-a8w8`; `main.py` lists the commands, one file each."""
