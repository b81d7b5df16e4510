# mkdirall PATH PARENT PARENTMASK MASK MODE OWNER: MODE is octal, if MASK cannot result in it;
# OWNER is an argument of chown; both may be empty. An existing directory stays as it is: any
# user who can write to its parent may have created it.
if [ -d "$1" ]; then
	exit 0
elif [ -e "$1" ] || [ -L "$1" ]; then
	fail "Not a directory"
fi
parents "$2" "$3"
# The names above may be links, and may change at any time. The script enters the parent, then
# the new directory, and changes the working directory itself.
cd -P -- "$2"
name=./${1##*/}
umask "$4"
said=$(LC_ALL=C mkdir -- "$name" 2>&1) || {
	[ ! -d "$name" ] || exit 0
	fail "$said"
}
[ -n "$5$6" ] || exit 0
enter "$name" "${PWD%/}/${1##*/}" || fail "$1 was changed while it was made"
[ -z "$6" ] || chown -h "$6" .
[ -z "$5" ] || chmod "$(printf '0%o' $((0$5 | 0$(stat -c %a .) & 07000)))" .
