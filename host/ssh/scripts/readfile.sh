# readfile PATH BYTES: prints at most BYTES from the start of a regular file. It checks the
# type first, because opening a FIFO would block. If a FIFO replaces the file meanwhile, the
# script blocks until its time limit.
[ -f "$1" ] || refuse "$1"
exec head -c "$2" -- "$1"
