# remove PATH [BESIDE]: one file or one empty directory; with BESIDE, a file that
# goes with it.
[ -z "${2-}" ] || rm -f -- "$2"
if [ -d "$1" ] && [ ! -L "$1" ]; then
	exec rmdir -- "$1"
fi
exec rm -- "$1"
