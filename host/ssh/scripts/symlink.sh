# symlink TARGET PATH DIR TEMPORARY
if [ -L "$2" ]; then
	old=$(readlink -- "$2" && echo x)
	[ "${old%?x}" != "$1" ] || exit 0
fi
parents "$3" 022
trap 'rm -f -- "$4"' EXIT
ln -s -- "$1" "$4"
mv -fT -- "$4" "$2"
trap - EXIT
