# lock: $path, $dir, $bytes and $nonce are set before this text; the holder's BYTES
# follow on standard input, then lines "beat", and "close" at the end. The life of
# this shell is the lock: it ends when no line came for 15 s, or at the end of its
# input. Nothing that it starts inherits descriptor 9 for long.
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
	# Its last holder may have removed it: then it would exclude nobody.
	[ /proc/self/fd/9 -ef "$path" ] && break
done
: >/proc/self/fd/9
[ "$bytes" -eq 0 ] || dd bs="$bytes" count=1 iflag=fullblock 2>/dev/null >&9
[ "$(wc -c <"$path")" -eq "$bytes" ] || fail "the holder was cut off"
# Who fences us off finds us by this: our number, and when we began.
read -r stat </proc/self/stat
set -- ${stat%% *} ${stat##*) }
pid=$1
shift 20
printf '%s %s\n' "$pid" "$1" >"$path.session"
printf '%s held\n' "$nonce"
while :; do
	line=$(timeout 15 dd bs=64 count=1 2>/dev/null 9>&-) || :
	case $line in
	*close*)
		if [ /proc/self/fd/9 -ef "$path" ]; then
			: >/proc/self/fd/9
			rm -f -- "$path.session"
		fi
		exit 0
		;;
	*beat*) ;;
	*) exit 0 ;;
	esac
	[ /proc/self/fd/9 -ef "$path" ] || exit 0
	printf '%s beat\n' "$nonce"
done
