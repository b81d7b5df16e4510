# sample HOSTFILES CGROUPFILES BASE NETWORKS SKIP N TREE... PATH...: reads counters with one
# awk, whatever their number. HOSTFILES has a line for each file of the host: code, digest
# (see machine.Digest), path, keys. CGROUPFILES has one for each file of a cgroup: code, digest,
# directory of the hierarchy, name, keys. BASE is the hierarchy in which the N trees are looked
# for. NETWORKS is yes or empty, and SKIP has the UIDs of pods whose network is not read. A file with
# digest "o" has the PIDs of processes whose open files are counted, and bounds instead of keys (see
# machine.Walk).
#
# It prints, each with a key and NULs: the counters, and for each PATH what measure prints. A
# line of the counters is a code and the digest; "=" and a cgroup, to which the next lines belong;
# "@" and a cgroup, to which the next interfaces belong; "+" and an interface.
set +e
host=$1 cgroups=$2 base=$3 networks=$4 skip=$5 n=$6
shift 6
dirs() {
	for tree; do
		[ "$left" -gt 0 ] || return 0
		left=$((left - 1))
		for dir in "$base$tree" "$base$tree"/*/ "$base$tree"/*/*/ "$base$tree"/*/*/*/; do
			[ ! -d "$dir" ] || printf '%s\n' "${dir%/}"
		done
	done
}
left=$n
printf 'counters\0'
dirs "$@" | BOWLINE_HOST=$host BOWLINE_CGROUPS=$cgroups BOWLINE_BASE=$base BOWLINE_NETWORKS=$networks BOWLINE_SKIP=$skip awk '
# digest prints what is needed of a file; keys begin at f[from].
function digest(code, kind, file, from,    line, out, i, v, got, has, r) {
	if (kind == "o")
		return
	if (kind == "k")
		for (i = from; i <= nf; i++)
			got[f[i]] = "-"
	out = ""
	has = 0
	while ((r = (getline line < file)) > 0) {
		has++
		if (kind == "1") {
			out = line
			break
		}
		if (kind == "k") {
			if (split(line, v, " ") > 1 && v[1] in got)
				got[v[1]] = v[2]
		} else if (kind != "n") {
			if (kind == "p")
				gsub(/[a-z0-9.]+=/, "", line)
			if (length(out) + length(line) > 49152) # machine.maxDigest
				break
			out = out (has > 1 ? ";" : "") line
		}
	}
	close(file)
	if (r < 0 || !has && kind != "n")
		return
	if (kind == "n")
		out = has
	if (kind == "k")
		for (i = from; i <= nf; i++)
			out = out (i > from ? " " : "") got[f[i]]
	print code " " out
}

function cgroup(path,    i) {
	print "=" path
	for (i = 1; i <= nc; i++) {
		nf = split(cfiles[i], f, " ")
		digest(f[1], f[2], f[3] path "/" f[4], 5)
	}
	if (path in files)
		print open " " files[path] " " sockets[path] " " limit[path]
}

# field returns a word of the line of a file that begins with this text, or "".
function field(file, text, n,    line, v, out) {
	out = ""
	while ((getline line < file) > 0)
		if (index(line, text) == 1) {
			split(line, v, " ")
			out = v[n]
			break
		}
	close(file)
	return out
}

# processes adds those of a cgroup to the list, and to args the arguments for ls, unless there are too
# many.
function processes(path, file, each, slots,    pid, n, sum, size, of, list, i, r) {
	files[path] = sockets[path] = limit[path] = "-"
	n = sum = 0
	list = ""
	if (path == "")
		limit[path] = word(field("/proc/1/limits", "Max open files ", 4))
	while ((r = (getline pid < file)) > 0) {
		if (pid !~ /^[1-9][0-9]*$/ || ++n > each || n > left) {
			close(file)
			return
		}
		if (n == 1 && path != "")
			limit[path] = word(field("/proc/" pid "/limits", "Max open files ", 4))
		size = field("/proc/" pid "/status", "FDSize:", 2)
		if (size == "")
			continue # it has ended
		sum += size
		of[n] = pid
		list = list " " pid "/fd"
	}
	close(file)
	if (r < 0 || sum > slots || sum > leftslots)
		return
	left -= n
	leftslots -= sum
	for (i = 1; i <= n; i++)
		if (i in of)
			owner[of[i]] = path
	args = args list
	files[path] = sockets[path] = 0
}

function word(text) {
	return text == "" ? "-" : text
}

# openfiles counts the open files of all cgroups with one ls, because one for each cgroup costs more
# than all else. Names of files do not break its lines: ls of GNU gets QUOTING_STYLE, and that of
# BusyBox prints a question mark.
function openfiles(    i, cmd, line, at, seen, whole, pid) {
	for (i = 1; i <= nc; i++) {
		split(cfiles[i], f, " ")
		if (f[2] == "o")
			break
	}
	if (i > nc)
		return
	open = f[1]
	left = f[6]
	leftslots = f[8]
	args = ""
	processes("", f[3] "/" f[4], f[5], f[7])
	for (i = 1; i <= np; i++)
		processes(paths[i], f[3] paths[i] "/" f[4], f[5], f[7])
	# self/fd comes last: without it, ls has not finished.
	cmd = "cd /proc && export QUOTING_STYLE=escape && { ulimit -t 3 2>/dev/null; err=$(ls -ln" args \
		" self/fd 2>&1 >&3 3>&-); } 3>&1; echo; echo \"$err\""
	at = ""
	whole = 0
	while ((cmd | getline line) > 0) {
		if (line ~ /^[0-9]+\/fd:$/) {
			pid = line
			sub(/\/.*/, "", pid)
			at = pid in owner && !(pid in seen) ? pid : ""
			if (pid in seen)
				unknown(pid)
			seen[pid] = 1
		} else if (line == "self/fd:") {
			whole = 1
			at = ""
		} else if (line ~ /^l/ && at != "") {
			files[owner[at]]++
			if (substr(line, index(line, " -> ") + 4) ~ /^socket:\[[0-9]+\]$/)
				sockets[owner[at]]++
		} else if (line ~ /^ls: / && line !~ /: No such (file|process)/ && match(line, /[0-9]+\/fd/)) {
			pid = substr(line, RSTART, RLENGTH - 3)
			unknown(pid)
		}
	}
	close(cmd)
	for (pid in owner)
		if (!whole || owner[pid] in bad)
			files[owner[pid]] = sockets[owner[pid]] = "-"
}

# unknown notes that the files of a process cannot be counted.
function unknown(pid) {
	if (pid in owner)
		bad[owner[pid]] = 1
}

# interfaces prints those of a network, and reports whether it has any.
function interfaces(file,    line, any) {
	any = 0
	while (any < 64 && (getline line < file) > 0)
		if (line ~ /:/ && line !~ /^ *(lo|veth|docker|nerdctl)/) {
			gsub(/ +/, " ", line)
			print "+" line
			any++
		}
	close(file)
	return any
}

function above(path) {
	sub(/\/[^\/]*$/, "", path)
	return path
}

function ofpod(path) {
	return path ~ /[\/-]pod[0-9a-f][0-9a-f_-]+(\.slice)?$/
}

# network prints the network of the pod with this container, once.
function network(path,    pod, uid, file, pid) {
	pod = above(path)
	if (pod in done || !ofpod(pod))
		return
	uid = pod
	sub(/.*pod/, "", uid)
	sub(/\.slice$/, "", uid)
	gsub(/_/, "-", uid)
	if (uid in skip)
		return
	file = base path "/cgroup.procs"
	if ((getline pid < file) > 0 && pid > 0) {
		print "@" pod
		if (interfaces("/proc/" pid "/net/dev"))
			done[pod] = 1
	}
	close(file)
}

BEGIN {
	base = ENVIRON["BOWLINE_BASE"]
	nh = split(ENVIRON["BOWLINE_HOST"], hfiles, "\n")
	nc = split(ENVIRON["BOWLINE_CGROUPS"], cfiles, "\n")
	ns = split(ENVIRON["BOWLINE_SKIP"], uids, " ")
	for (i = 1; i <= ns; i++)
		skip[uids[i]] = 1
	np = 0
}

{
	path = substr($0, length(base) + 1)
	if (!ofpod(above(above(path))))
		paths[++np] = path
}

END {
	openfiles() # before the uptime, which dates the counters
	for (i = 1; i <= nh; i++) {
		nf = split(hfiles[i], f, " ")
		digest(f[1], f[2], f[3], 4)
	}
	if (ENVIRON["BOWLINE_NETWORKS"])
		interfaces("/proc/net/dev")
	cgroup("")
	for (p = 1; p <= np; p++) {
		cgroup(paths[p])
		if (ENVIRON["BOWLINE_NETWORKS"])
			network(paths[p])
	}
}'
code=$?
printf '\0'
[ "$code" -eq 0 ] || printf 'awk\0%s\0' "$code"
shift "$n"
filesystems "$@"
exit 0
