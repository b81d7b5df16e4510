# mkdirall PATH PARENT PARENTMASK MASK MODE OWNER: MODE in octal where MASK cannot give it
# to a new directory, OWNER as chown takes it; both may be empty. What is there stays as it
# is: who writes to its parent may have put any directory there.
if [ -d "$1" ]; then
	exit 0
elif [ -e "$1" ] || [ -L "$1" ]; then
	fail "Not a directory"
fi
parents "$2" "$3"
# The names above may be links, and may become others at any time. The parent is entered,
# and so is what is made in it: what is changed is the working directory.
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
