# watch NONCE WHO WHY: reads "hold" and, while it holds, "release". Says, each behind NONCE,
# "held", "released", "refused" (after the words of systemd-inhibit) and "ended" when the
# monitor has; between them are the monitor's own lines.
nonce=$1 who=$2 why=$3
(
	busctl monitor --match="type='signal',sender='org.freedesktop.login1',path='/org/freedesktop/login1',interface='org.freedesktop.login1.Manager',member='PrepareForShutdown'"
	echo "$nonce ended"
) </dev/null &
# The process group is this script's own. A signal that a shell may catch is lost by one
# that is between its beginning and what it runs, so that the monitor would stay.
trap 'kill -KILL 0' EXIT
trap 'exit 1' HUP INT TERM
while read -r word; do
	[ "$word" = hold ] || continue
	code=0
	systemd-inhibit --what=shutdown --mode=delay --who="$who" --why="$why" \
		sh -c 'echo "$0 held"; read -r word || exit 9' "$nonce" || code=$?
	case $code in
	0) echo "$nonce released" ;;
	9) exit 0 ;;
	*) echo "$nonce refused" ;;
	esac
done
