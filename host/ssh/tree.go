package ssh

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// WriteTree uses the layout that host/local describes. One request carries the whole tree as
// shell text whose printf commands write the files, so that a thousand files do not need a
// thousand processes. A writer whose request we gave up may still run, so the script also locks
// the directory on the host.
func (h *Host) WriteTree(ctx context.Context, dir string, tree host.Tree) error {
	return run(h, ctx, "WriteTree", treeDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("write tree", dir); err != nil {
			return err
		}
		if err := machine.CheckTree(tree); err != nil {
			return fmt.Errorf("write tree %s: %w", dir, err)
		}
		dir = path.Clean(dir)
		unlock, err := h.trees.Lock(ctx, dir)
		if err != nil {
			return err
		}
		defer unlock()
		wait := int64(remaining(ctx) / time.Second)
		_, err = h.script(ctx, "write tree", dir, scriptWriteTree, []string{dir, versionName(), itoa(wait)},
			[]byte(h.treeAbout(tree)+"content() {\n"+h.treeContent(tree)+"}\n"+endMark))
		return err
	})
}

// versionName is unique except for a chance of one in a million per second.
func versionName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%s%06d", time.Now().UTC().Format(machine.VersionLayout), binary.BigEndian.Uint32(b[:])%1_000_000)
}

// endMark ends a request that consists of shell text.
const endMark = "#end"

// wantOwner returns root for nil, if we can chown to root.
func (h *Host) wantOwner(o *host.Owner) host.Owner {
	switch {
	case o != nil:
		return *o
	case h.machine().asRoot:
		return host.Owner{}
	}
	return host.Owner{UID: -1, GID: -1}
}

// treeAbout is shell text that defines
//
//	names COMMAND...   runs COMMAND with the first elements of the paths
//	dirs COMMAND...    runs COMMAND with the version's directories, itself first
//	states             prints modes, owners and sizes of the files
//	contents           prints the bytes of all files
//	targets            prints the targets of the visible links
//	link_all           creates the visible links, if there are none
//	$states $digest    the expected output of states and sha256sum of contents
//	$entries           the number of files and directories in the version
//	$links $count      the expected output of targets, and the number of names
func (h *Host) treeAbout(tree host.Tree) string {
	paths := machine.SortedPaths(tree)
	isDir, sum := map[string]bool{}, sha256.New()
	dirs := []string{"."}
	// stat prints one group of files for each combination of requested owner and group.
	formats := [4]string{"%f - - %s", "%f %u - %s", "%f - %g %s", "%f %u %g %s"}
	var groups, states [4][]string
	for _, p := range paths {
		f := tree[p]
		sum.Write(f.Data)
		for d := path.Dir(p); d != "." && !isDir[d]; d = path.Dir(d) {
			isDir[d] = true
			dirs = append(dirs, d)
		}
		kind, uid, gid := 0, "-", "-"
		o := h.wantOwner(f.Owner)
		if o.UID >= 0 {
			kind, uid = kind|1, itoa(o.UID)
		}
		if o.GID >= 0 {
			kind, gid = kind|2, itoa(o.GID)
		}
		groups[kind] = append(groups[kind], p)
		states[kind] = append(states[kind], fmt.Sprintf("%x %s %s %d", 0o100000|uint32(f.Mode.Perm()), uid, gid, len(f.Data)))
	}
	names := make([]string, 0, len(tree))
	for n := range machine.FirstElements(tree) {
		names = append(names, n)
	}
	slices.Sort(names)
	links := make([]string, len(names))
	for i, n := range names {
		links[i] = machine.DataLink + "/" + n
	}
	var b strings.Builder
	b.WriteString("names() {\n\"$@\"" + words(names) + "\n}\ndirs() {\n\"$@\"" + words(dirs) + "\n}\nstates() {\n:\n")
	for kind, group := range groups {
		b.WriteString(batch("stat -c '"+formats[kind]+"' --", group))
	}
	b.WriteString("}\ncontents() {\n:\n" + batch("cat --", paths) + "}\ntargets() {\n:\n")
	if h.machine().findPrintf {
		b.WriteString(batch("readlink --", names))
	} else {
		for _, n := range names { // busybox's takes one
			b.WriteString("readlink -- " + shell.Quote(n) + "\n")
		}
	}
	b.WriteString("}\nlink_all() {\n" + batchInto("ln -s --", links, ".") + "}\n")
	fmt.Fprintf(&b, "states=%s\ndigest='%s  -'\nentries=%d\nlinks=%s\ncount=%d\n",
		shell.Quote(strings.Join(slices.Concat(states[:]...), "\n")), hex.EncodeToString(sum.Sum(nil)),
		len(paths)+len(dirs)-1, shell.Quote(strings.Join(links, "\n")), len(names))
	return b.String()
}

// maxWords is a number of bytes of arguments that every command accepts.
const maxWords = 32 << 10

// batch is a line that runs command with the words of list: once if they are few, else as often
// as xargs needs. It is empty if list is.
func batch(command string, list []string) string {
	w := words(list)
	switch {
	case w == "":
		return ""
	case len(w) < maxWords:
		return command + w + "\n"
	}
	return "printf '%s\\0'" + w + " | xargs -0 " + command + "\n"
}

// batchInto is batch for a command whose last argument is a directory.
func batchInto(command string, list []string, dir string) string {
	w := words(list)
	switch {
	case w == "":
		return ":\n"
	case len(w) < maxWords:
		return command + w + " " + dir + "\n"
	}
	return "printf '%s\\0'" + w + " | xargs -0 sh -c '" + command + " \"$@\" " + dir + "' sh\n"
}

// words quotes the arguments of a command, each after a blank.
func words(list []string) string {
	var b strings.Builder
	for _, w := range list {
		b.WriteString(" " + shell.Quote(w))
	}
	return b.String()
}

// treeContent is shell text that writes the tree into the current directory, which must be
// empty.
func (h *Host) treeContent(tree host.Tree) string {
	paths := machine.SortedPaths(tree)
	var b strings.Builder
	var dirs []string
	owners, modes := map[string][]string{}, map[string][]string{}
	for _, p := range paths {
		if d := path.Dir(p); d != "." && (len(dirs) == 0 || dirs[len(dirs)-1] != d) {
			dirs = append(dirs, d)
		}
		o := h.wantOwner(tree[p].Owner)
		if w := ownerWord(&o); w != "" {
			owners[w] = append(owners[w], p)
		}
		mode := octal(tree[p].Mode)
		modes[mode] = append(modes[mode], p)
	}
	b.WriteString("umask 022\n" + batch("mkdir -p --", dirs))
	mask := ""
	for _, p := range paths {
		// The umask gives a new file its mode at once; executables get theirs below.
		if m := octal(0o777 &^ tree[p].Mode.Perm()); m != mask {
			mask = m
			b.WriteString("umask " + mask + "\n")
		}
		writeFileText(&b, p, tree[p].Data)
	}
	for _, o := range sortedKeys(owners) {
		if o == "0:0" && h.machine().asRoot {
			// Files belong to root already, unless the directory passes on its group.
			b.WriteString("[ ! -g . ] || {\n" + batch("chown -h "+o+" --", owners[o]) + "}\n")
			continue
		}
		b.WriteString(batch("chown -h "+o+" --", owners[o]))
	}
	for _, m := range sortedKeys(modes) { // after chown, which drops bits
		if strings.ContainsAny(m, "1357") {
			b.WriteString(batch("chmod "+m+" --", modes[m]))
		}
	}
	return b.String()
}

func sortedKeys(m map[string][]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// chunk is the number of bytes that one printf writes.
const chunk = 32 << 10

func writeFileText(b *strings.Builder, p string, data []byte) {
	if len(data) == 0 {
		b.WriteString(": >" + shell.Quote(p) + "\n")
		return
	}
	b.WriteString("{\n")
	printText(b, data)
	b.WriteString("} >" + shell.Quote(p) + "\n")
}

// printText writes shell lines that print data.
func printText(b *strings.Builder, data []byte) {
	for part := range slices.Chunk(data, chunk) {
		b.WriteString("printf '")
		escape(b, part)
		b.WriteString("'\n")
	}
}

// escape writes data as a printf format between single quotes.
func escape(b *strings.Builder, data []byte) {
	for i, c := range data {
		switch {
		case c == '%':
			b.WriteString("%%")
		case c == '\\':
			b.WriteString(`\\`)
		case c == '\n' || c >= ' ' && c < 0x7f && c != '\'' && (c != '-' || i > 0): // a first - is an option
			b.WriteByte(c)
		default:
			b.WriteString(`\` + string([]byte{'0' + c>>6, '0' + c>>3&7, '0' + c&7}))
		}
	}
}
