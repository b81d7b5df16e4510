# remove PATH: one file or one empty directory.
if [ -d "$1" ] && [ ! -L "$1" ]; then
	exec rmdir -- "$1"
fi
exec rm -- "$1"
