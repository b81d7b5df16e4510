# unmount TARGET DIR PATIENCE: unmounts all mounts that are stacked on TARGET. A mount in
# use stays, and the script reports some of the processes that use it. Only in-memory and
# read-only mounts are detached while they are in use, because no write can be lost.
# The script does not stat the target: stat may block on the file server. If nothing uses
# the mount, the kernel detaches it before it waits for the server; that wait lasts as long
# as the umount process, at most PATIENCE seconds. A mount below TARGET keeps it: the script
# exits with 32.
[ -d "$2" ] || exit 0
real "$2"
real=${real%/}/${1##*/}
pattern

# users: prints "PID (NAME)" of some processes that have a file below $real open, or have
# their working directory or root there. It reads only the kernel's links.
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

# held: prints the mount and the processes that use it, and exits with 35: in use.
held() {
	set -f
	set -- $top
	set +f
	printf '%s\n' "$1" "$2"
	users
	exit 35
}

# childless: exits with 32 if there is a mount below $real. The root of a mount may have the same
# path, so the pattern begins at the first field.
childless() {
	[ -z "$(sed -n -e "\\,^[^ ]* [^ ]* [^ ]* [^ ]* $pattern/,{=;q;}" /proc/self/mountinfo)" ] || {
		printf 'a mount below it\n' >&2
		exit 32
	}
}

# loose: whether the topmost mount can be detached without losing a write.
loose() {
	case $top in
	tmpfs\ * | ramfs\ * | hugetlbfs\ *) return 0 ;;
	esac
	case ,$flags, in
	*,ro,*) return 0 ;;
	esac
	return 1
}

patient() {
	timeout -s KILL "$patience" "$@"
}

rounds=0 patience=$3
# A path that mountinfo names exactly is a mount point and no link.
while survey && [ "$height" -gt 0 ]; do
	[ "$rounds" -lt 64 ] || fail "still mounted after 64 rounds"
	rounds=$((rounds + 1)) before=$height
	case $top in
	nfs\ * | nfs4\ *)
		# -c: umount does not resolve the path. Busybox has no -c and never resolves it.
		patient umount -c -- "$real" 2>/dev/null || patient umount -- "$real" 2>/dev/null || :
		survey
		[ "$height" = "$before" ] || continue
		# If the server does not answer, -f aborts the requests to it.
		patient stat -f -- "$real" >/dev/null 2>&1 ||
			patient umount -cf -- "$real" 2>/dev/null || patient umount -f -- "$real" 2>/dev/null || :
		survey
		[ "$height" = "$before" ] || continue
		childless
		if loose; then
			patient umount -cl -- "$real" 2>/dev/null || patient umount -l -- "$real" 2>/dev/null || :
			survey
			[ "$height" = "$before" ] || continue
		fi
		held
		;;
	esac
	said=$(LC_ALL=C umount -- "$real" 2>&1) || {
		survey
		[ "$height" = "$before" ] || continue
		case $said in
		*[Bb]usy*) ;;
		*) fail "$said" ;;
		esac
		childless
		loose || held
		umount -l -- "$real"
	}
	[ "$before" -gt 1 ] || exit 0
done
