# run DIR BYTES COMMAND ARGS...: the first BYTES of standard input are shell text that exports
# the environment, so that it is in no process's arguments.
dir=$1
if [ "$2" -gt 0 ]; then
	text=$(dd bs="$2" count=1 iflag=fullblock 2>/dev/null)
	eval "$text"
fi
shift 2
set +eu
if [ -n "$dir" ]; then
	cd -- "$dir" 2>/dev/null || { printf 'bowline: no directory %s: No such file or directory\n' "$dir" >&2; exit 126; }
fi
case $1 in
*/*) [ -f "$1" ] ;;
*) command -v -- "$1" >/dev/null ;;
esac || { printf 'bowline: no program %s: No such file or directory\n' "$1" >&2; exit 127; }
exec "$@"
