# symlink TARGET PATH DIR TEMPORARY
if [ -L "$2" ]; then
	old=$(readlink -- "$2" && echo x)
	[ "${old%?x}" != "$1" ] || exit 0
fi
parents "$3" 022
# Usually nothing exists at PATH. ln must not follow a link to a directory that appears
# meanwhile.
if [ ! -e "$2" ] && [ ! -L "$2" ] && ln -sn -- "$1" "$2" 2>/dev/null; then
	exit 0
fi
trap 'rm -f -- "$4"' EXIT
ln -s -- "$1" "$4"
mv -fT -- "$4" "$2"
trap - EXIT
