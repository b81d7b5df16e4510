# readfile PATH BYTES: at most BYTES from the start of a regular file. The type is
# looked at before, since opening a FIFO would wait; one that is put there
# meanwhile holds us until the time limit.
[ -f "$1" ] || refuse "$1"
exec head -c "$2" -- "$1"
