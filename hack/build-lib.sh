# build MODULE PACKAGE OUT FLAG...: builds the program OUT with these flags of go build. It shows every
# few seconds how many packages are compiled and how long the rest may take, because a build with a
# cold cache takes minutes: it downloads the modules first. With a warm cache it shows nothing.
build() {
  local module=$1 package=$2 out=$3 log start pid all compiled shown
  shift 3
  log=$(mktemp)
  out=$(realpath -m "$out")
  start=$SECONDS shown=$SECONDS
  trap 'kill $pid 2>/dev/null; exit 130' INT TERM
  # go list downloads the modules that are missing.
  (cd "$module" && exec go list "$@" -deps -f '{{if .Stale}}.{{end}}' "$package") >"$log" 2>"$log.errors" &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if ((SECONDS - shown >= 5)); then
      printf '  %4d s, finding out what to build (missing modules are downloaded first)\n' $((SECONDS - start))
      shown=$SECONDS
    fi
  done
  wait "$pid" || true # go build fails for the same reason, and shows it
  all=$(grep -c . "$log") || true
  (cd "$module" && exec go build -v "$@" -o "$out.new" "$package") >"$log" 2>&1 &
  pid=$! start=$SECONDS shown=$SECONDS
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if ((all > 1 && SECONDS - shown >= 4)); then # one package is only the program itself
      compiled=$(wc -l <"$log")
      printf '  %4d s, %4d of %d packages compiled, about %d s left\n' $((SECONDS - start)) "$compiled" "$all" \
        $((compiled > 0 && all > compiled ? (SECONDS - start) * (all - compiled) / compiled + 1 : 1))
      shown=$SECONDS
    fi
  done
  if ! wait "$pid"; then
    grep -v '^[a-z0-9./_-]*$' "$log" >&2 || cat "$log" >&2
    rm -f "$log" "$log.errors"
    return 1
  fi
  trap - INT TERM
  rm -f "$log" "$log.errors"
  mv -f "$out.new" "$out"
}
