"""Session files of coding agents on this machine: `find` locates and imports them, `export` writes them."""
