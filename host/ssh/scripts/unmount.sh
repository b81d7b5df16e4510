# unmount TARGET: all of a stack. What is in use goes out of sight at once.
[ -e "$1" ] || [ -L "$1" ] || exit 0
[ ! -L "$1" ] || exit 0
real "$1"
escaped
case $real in
*/"${1##*/}") ;;
*) fail "$real is not $1" ;;
esac
rounds=0
# A path that mountinfo names exactly is a mount point and no link.
while cut -d ' ' -f 5 /proc/self/mountinfo | grep -qxF -e "$escaped"; do
	[ "$rounds" -lt 64 ] || fail "still mounted after 64 rounds"
	rounds=$((rounds + 1))
	umount -- "$real" 2>/dev/null || umount -l -- "$real"
done
