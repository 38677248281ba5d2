"""Pure values and functions: no clock, no files, no sockets, no environment, no logging."""
