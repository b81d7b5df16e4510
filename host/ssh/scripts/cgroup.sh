# put VALUE FILE: writes VALUE to FILE unless FILE has it already. If the write fails, it tries
# again with tee, whose message shows the errno; the shell's does not.
put() {
	old=
	read -r old <"$2" || :
	[ "$old" = "$1" ] || printf '%s\n' "$1" 2>/dev/null >"$2" || printf '%s\n' "$1" | tee -- "$2" >/dev/null || exit 1
}

# word LIST WORD
word() {
	case " $1 " in
	*" $2 "*) return 0 ;;
	esac
	return 1
}

# settings HAVE TEXT: applies the lines CONTROLLER|OPTIONAL|VALUE|FILE of TEXT; HAVE are
# the available controllers.
settings() {
	while IFS='|' read -r controller optional value file; do
		[ -n "$controller" ] || continue
		if ! word "$1" "$controller" || [ ! -e "$file" ]; then
			[ "$optional" = no ] || continue
			fail "the $controller controller is not available: there is no $file"
		fi
		put "$value" "$file"
	done <<EOF
$2
EOF
}
