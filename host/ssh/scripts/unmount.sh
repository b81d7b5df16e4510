# unmount TARGET DIR PATIENCE: all of a stack. What is in use goes out of sight at once. The
# target is not looked at: who looks at what another machine shares waits for that. It has
# been detached when the kernel waits, which lasts as long as the program that asked for it,
# PATIENCE in seconds at most.
[ -d "$2" ] || exit 0
real "$2"
real=${real%/}/${1##*/}
escaped
rounds=0
# A path that mountinfo names exactly is a mount point and no link.
while top=$(top) && [ -n "$top" ]; do
	[ "$rounds" -lt 64 ] || fail "still mounted after 64 rounds"
	rounds=$((rounds + 1))
	case $top in
	nfs\ * | nfs4\ *)
		before=$(height)
		# Names are not looked up anew (-c); busybox knows no -c, and does not look them up.
		timeout -s KILL "$3" umount -c -- "$real" 2>/dev/null || timeout -s KILL "$3" umount -- "$real" 2>/dev/null || :
		[ "$(height)" = "$before" ] || continue
		timeout -s KILL "$3" umount -cfl -- "$real" 2>/dev/null || timeout -s KILL "$3" umount -fl -- "$real" || :
		[ "$(height)" != "$before" ] || fail "the machine that shares it holds it"
		;;
	*) umount -- "$real" 2>/dev/null || umount -l -- "$real" ;;
	esac
done
