# lock: $path, $dir, $bytes and $nonce are set before this text, and $self, $sshd and
# $since by shell/connection.sh; the holder's BYTES
# follow on standard input, then lines "beat", and "close" at the end. The life of
# this shell is the lock: it ends when no line came for 15 s, or at the end of its
# input. Nothing that it starts inherits descriptor 9 for long.
#
# A driver that was silent may only have been stopped, with requests on their way
# to the runtime over the connection that it came by, or running. So that
# connection and all that was begun over it end first, and the lock is free only when
# nothing can come of it any more.
parents "$dir" 027
umask 027
while :; do
	[ ! -L "$path" ] || fail "$path is a link: Too many levels of symbolic links"
	[ ! -e "$path" ] || [ -f "$path" ] || fail "$path is not a regular file"
	exec 9>>"$path"
	if ! flock -n 9; then
		# One that has just taken the lock gets the time to write itself in.
		for wait in 1 2 3; do
			[ -s "$path" ] || sleep 0.05 2>/dev/null 9>&- || sleep 1 9>&-
		done
		printf '%s locked\n' "$nonce"
		exec head -c 65536 -- "$path" 9>&-
	fi
	# Its last holder may have removed it: then it would exclude no one.
	[ /proc/self/fd/9 -ef "$path" ] && break
done
: >/proc/self/fd/9
[ "$bytes" -eq 0 ] || dd bs="$bytes" count=1 iflag=fullblock 2>/dev/null >&9
[ "$(wc -c <"$path")" -eq "$bytes" ] || fail "the holder was cut off"
# The last driver may have gone without a word, with requests still running: they end
# before we begin.
if [ -s "$path.session" ]; then
	read -r pid start old oldsince <"$path.session" || :
	case $old$oldsince in
	'' | *[!0-9]*) ;;
	*) [ "$old $oldsince" = "$sshd $since" ] || fence "$old" "$oldsince" ;;
	esac
fi

# Who fences us off finds us by this: our number and when we began, and the same of
# the connection.
began "$self"
printf '%s %s %s %s\n' "$self" "$began" "$sshd" "$since" >"$path.session"
printf '%s held\n' "$nonce"
while :; do
	code=0
	line=$(timeout 15 dd bs=64 count=1 2>/dev/null 9>&-) || code=$?
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
		# 124 is coreutils', 143 busybox's: the time was up. Else the input has ended.
		[ "$code" -ne 0 ] || exit 0
		trap '' HUP PIPE TERM
		fence "$sshd" "$since"
		exit 0
		;;
	esac
	[ /proc/self/fd/9 -ef "$path" ] || exit 0
	printf '%s beat\n' "$nonce"
done
