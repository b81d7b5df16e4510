# unmount TARGET DIR PATIENCE: all of a stack. What is in use stays, and is reported with some
# of its users, unless nothing can be lost of it: memory, and what is read-only, goes out of
# sight. The target is not looked at: who looks at what another machine shares waits for
# that. Where nothing uses it, it has been detached when the kernel waits, which lasts as
# long as the program that asked for it, PATIENCE in seconds at most.
[ -d "$2" ] || exit 0
real "$2"
real=${real%/}/${1##*/}
escaped

# users: prints "PID (NAME)" of some processes that have something of $real open, or run in
# it. Only the kernel's links are read.
users() {
	ls -l /proc/[0-9]*/ /proc/[0-9]*/fd 2>/dev/null | grep -F -e '/proc/' -e " -> $real" | {
		pid= found=
		while IFS= read -r line; do
			case $line in
			/proc/*:)
				pid=${line#/proc/}
				pid=${pid%%[/:]*}
				continue
				;;
			*" -> $real" | *" -> $real/"*) ;;
			*) continue ;;
			esac
			case " $found " in *" $pid "*) continue ;; esac
			found="$found $pid" name=
			read -r name 2>/dev/null <"/proc/$pid/comm" || :
			printf '%s (%s)\n' "$pid" "$name"
		done
	} | head -n 3
}

# held: ends with what is mounted and who uses it. 35: in use.
held() {
	set -f
	set -- $top
	set +f
	printf '%s\n' "$1" "$2"
	users
	exit 35
}

# loose: nothing written to what is mounted last could be lost.
loose() {
	case $top in
	tmpfs\ * | ramfs\ * | hugetlbfs\ *) return 0 ;;
	esac
	case ,$(flags), in
	*,ro,*) return 0 ;;
	esac
	return 1
}

patient() {
	timeout -s KILL "$patience" "$@"
}

rounds=0 patience=$3
# A path that mountinfo names exactly is a mount point and no link.
while top=$(top) && [ -n "$top" ]; do
	[ "$rounds" -lt 64 ] || fail "still mounted after 64 rounds"
	rounds=$((rounds + 1)) before=$(height)
	case $top in
	nfs\ * | nfs4\ *)
		# Paths are not resolved again (-c); busybox knows no -c, and does not resolve them.
		patient umount -c -- "$real" 2>/dev/null || patient umount -- "$real" 2>/dev/null || :
		[ "$(height)" = "$before" ] || continue
		# A server that does not answer: requests to it are aborted.
		patient stat -f -- "$real" >/dev/null 2>&1 ||
			patient umount -cf -- "$real" 2>/dev/null || patient umount -f -- "$real" 2>/dev/null || :
		[ "$(height)" = "$before" ] || continue
		if loose; then
			patient umount -cl -- "$real" 2>/dev/null || patient umount -l -- "$real" 2>/dev/null || :
			[ "$(height)" = "$before" ] || continue
		fi
		held
		;;
	esac
	said=$(LC_ALL=C umount -- "$real" 2>&1) || {
		[ "$(height)" = "$before" ] || continue
		case $said in
		*[Bb]usy*) ;;
		*) fail "$said" ;;
		esac
		loose || held
		umount -l -- "$real"
	}
done
