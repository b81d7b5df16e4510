# make: $input is shell text that calls what is below (see makeText). The
# numbers of the things at whose paths nothing was are printed.

# dirs MASK MODE NUMBER:PATH...: MASK is for the parents that are missing. What is there
# stays as it is.
dirs() {
	mask=$1 mode=$2
	shift 2
	for word; do
		shift
		path=${word#*:}
		if [ -d "$path" ]; then
			continue
		elif [ -e "$path" ] || [ -L "$path" ]; then
			fail "$path: Not a directory"
		else
			printf '%s\n' "${word%%:*}"
			set -- "$@" "$path"
		fi
	done
	[ $# -gt 0 ] || return 0
	umask "$mask"
	mkdir -p -m "$mode" -- "$@"
}

# full NUMBER MASK MODE PATH DIR TEMPORARY: what content prints becomes the file.
# MODE is empty where MASK gives it.
full() {
	seen "$1" "$4"
	parents "$5" 027
	umask "$2"
	tmp=$6
	content >"$tmp"
	place "$3" "$4"
}

# inplace NUMBER MASK MODE PATH DIR TEMPORARY WHOLE: as full. A regular file that is there
# keeps its inode, and gets the mode WHOLE.
inplace() {
	if [ -L "$4" ] || [ ! -f "$4" ]; then
		full "$@"
		return
	fi
	content >|"$4"
	chmod "$7" -- "$4"
}

# synced: as full. It survives a power cut.
synced() {
	above "$5"
	seen "$1" "$4"
	parents "$5" 027
	umask "$2"
	tmp=$6
	content >"$tmp"
	[ -z "$3" ] || chmod "$3" "$tmp"
	sync -- "$tmp"
	place '' "$4"
	named "$5"
}

# empty: as full. Where nothing is there is nothing to replace.
empty() {
	seen "$1" "$4"
	parents "$5" 027
	umask "$2"
	if [ -n "$3" ] || [ -e "$4" ] || ! { true >"$4"; } 2>/dev/null; then
		tmp=$6
		: >"$tmp"
		place "$3" "$4"
	fi
}

seen() {
	[ -e "$2" ] || [ -L "$2" ] || printf '%s\n' "$1"
}

place() {
	[ -z "$1" ] || chmod "$1" "$tmp"
	mv -fT -- "$tmp" "$2"
	tmp=
}

set -C
tmp=
trap '[ -z "$tmp" ] || { room "$tmp"; rm -f -- "$tmp"; }' EXIT
# A link that fails under us looks like the end of the text.
case $input in
*'#end') ;;
*) fail "the list was cut off" ;;
esac
eval "$input"
