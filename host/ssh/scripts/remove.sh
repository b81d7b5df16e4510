# remove PATH [BESIDE]: removes one file or one empty directory, and the file BESIDE if given.
[ -z "${2-}" ] || rm -f -- "$2"
if [ -d "$1" ] && [ ! -L "$1" ]; then
	exec rmdir -- "$1"
fi
exec rm -- "$1"
