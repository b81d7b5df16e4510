# lock: the caller sets $path, $dir, $bytes and $nonce before this text, shell/connection.sh
# sets $self, $sshd and $since. Standard input has the holder's BYTES, then lines "beat",
# and "close" at the end. The lock lasts as long as this shell, which ends when it has read
# no line for 15 s, or at the end of its input. None of its child processes keeps
# descriptor 9 open for long.
#
# A silent driver may only be suspended. Its requests may still be in flight over its
# connection, or running on the host. So the script first kills that connection and every
# process that was started over it. The lock is free only when none of them can act any more.
parents "$dir" 027
umask 027
while :; do
	[ ! -L "$path" ] || fail "$path is a link: Too many levels of symbolic links"
	[ ! -e "$path" ] || [ -f "$path" ] || fail "$path is not a regular file"
	exec 9>>"$path"
	if ! flock -n 9; then
		# A process that has just taken the lock gets time to write its record.
		for wait in 1 2 3; do
			[ -s "$path" ] || sleep 0.05 2>/dev/null 9>&- || sleep 1 9>&-
		done
		printf '%s locked\n' "$nonce"
		exec head -c 65536 -- "$path" 9>&-
	fi
	# The last holder may have removed the file: then a lock on it would exclude no one.
	[ /proc/self/fd/9 -ef "$path" ] && break
done
: >/proc/self/fd/9
[ "$bytes" -eq 0 ] || dd bs="$bytes" count=1 iflag=fullblock 2>/dev/null >&9
[ "$(wc -c <"$path")" -eq "$bytes" ] || fail "the holder was cut off"
# The last driver may have disappeared while requests still run: kill them before we begin.
recorded "$path.session"
[ -z "$sshd_recorded" ] || [ "$sshd_recorded $since_recorded" = "$sshd $since" ] || purge "$sshd_recorded" "$since_recorded"

# A process that purges us finds us by this: the version of the record, our process ID and
# start time, and those of the connection.
began "$self"
printf 'v1 %s %s %s %s\n' "$self" "$began" "$sshd" "$since" >"$path.session"
printf '%s held\n' "$nonce"
while :; do
	code=0
	# The read of bash has a timeout. With any other shell each beat costs two processes.
	if [ -n "${BASH_VERSION-}" ]; then
		# shellcheck disable=SC3045
		IFS= read -r -t 15 line || code=$?
		[ "$code" -gt 128 ] || code=0
	else
		line=$(timeout 15 dd bs=64 count=1 2>/dev/null 9>&-) || code=$?
	fi
	case $line in
	*close*)
		if [ /proc/self/fd/9 -ef "$path" ]; then
			: >/proc/self/fd/9
			rm -f -- "$path.session"
		fi
		exit 0
		;;
	*beat*) ;;
	*)
		# More than 128 (bash), 124 (coreutils) and 143 (busybox) mean a timeout. Otherwise
		# the input has ended.
		[ "$code" -ne 0 ] || exit 0
		trap '' HUP PIPE TERM
		purge "$sshd" "$since"
		exit 0
		;;
	esac
	[ /proc/self/fd/9 -ef "$path" ] || exit 0
	printf '%s beat\n' "$nonce"
done
