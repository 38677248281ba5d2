"""Files that coding agents keep on this machine: `client_logs` finds and imports them, `client_files` writes them."""
