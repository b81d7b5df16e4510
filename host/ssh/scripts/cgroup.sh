# put VALUE FILE: writes no file that holds the value already. The shell's own
# message has no error number, tee's has.
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

# settings HAVE TEXT: TEXT is lines of CONTROLLER|OPTIONAL|VALUE|FILE; HAVE are the
# controllers there are.
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
