# readtail PATH BYTES: prints at most BYTES from the end of a regular file. Pods write to its
# directory, so the script reads only after it has checked that the opened file is PATH and no
# link. If a FIFO replaces the file before the open, the script blocks until its time limit,
# which is short.
[ ! -L "$1" ] || fail "it is a symbolic link: Too many levels of symbolic links"
[ -f "$1" ] || refuse "$1"
exec 3<"$1"
named=$(stat -c '%f %d %i' -- "$1")
opened=$(stat -L -c '%f %d %i %s' /proc/self/fd/3)
case $opened in
8???" "*) ;;
*) fail "not a regular file" ;;
esac
size=${opened##* }
[ "$named $size" = "$opened" ] || fail "it was replaced while it was opened"
if [ "$size" -le "$2" ]; then
	exec head -c "$2" <&3
fi
# Limit the output: a file that grows meanwhile must not exceed BYTES.
tail -c +$((size - $2 + 1)) <&3 | head -c "$2"
