# readtail PATH BYTES: at most BYTES from the end of a regular file. Pods write
# here: nothing is read before it is sure that what was opened is what PATH names,
# and no link. A FIFO put there between the look and the opening holds us until
# the time limit, which is short.
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
# Not all of the rest: a file that grows meanwhile must not give more.
tail -c +$((size - $2 + 1)) <&3 | head -c "$2"
