# stat PATH: prints one record, see parseInfos; for a find without -printf.
info() {
	state=$(stat -c '%f %s %i %d %g %Y %y' -- "$1") || return 1
	target=
	[ ! -L "$1" ] || target=$(readlink -- "$1" && echo x) || return 1
	target=${target%?x}
	printf 'x%s\0%s\0%s\0' "$state" "${1##*/}" "$target"
}
