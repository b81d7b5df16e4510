package ssh

import (
	"embed"
	"strings"

	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

//go:embed scripts/*.sh
var scriptFiles embed.FS

var prelude = script("prelude")

// load concatenates the prelude and the scripts.
func load(names ...string) string {
	texts := []string{prelude}
	for _, n := range names {
		texts = append(texts, script(n))
	}
	return strings.Join(texts, "")
}

// script returns a script without its whole-line comments, because the text is in the arguments of a
// process on the host.
func script(name string) string {
	data, err := scriptFiles.ReadFile("scripts/" + name + ".sh")
	if err != nil {
		panic(err) // a misspelt name in this file
	}
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// privateScript holds one script in three forms; on chooses by what the host's unshare(1) can do.
// In a mount namespace of its own, the script receives no mounts that others make meanwhile.
type privateScript struct {
	shared    string // in the namespace of the shell
	unshared  string // in a namespace of its own
	remounted string // the same, with an unshare(1) before util-linux 2.27, which leaves mounts shared
}

// private returns a script from the files in names. The file before runs first, in the namespace
// of the shell, where its unmounts take effect.
func private(before string, names ...string) privateScript {
	before, text := script(before), load(names...)
	return privateScript{
		shared:    before + text,
		unshared:  before + "exec unshare -m --propagation private sh -c " + shell.Quote(text) + ` sh "$@"`,
		remounted: before + "exec unshare -m sh -c " + shell.Quote("mount --make-rprivate / 2>/dev/null\n"+text) + ` sh "$@"`,
	}
}

func (s privateScript) on(f *found) string {
	switch {
	case f.propagation:
		return s.unshared
	case f.unshare:
		return s.remounted
	}
	return s.shared
}

const (
	scriptClock      = "date +%s.%N"
	scriptConnection = "printf %s \"$BOWLINE_CONNECTION\""
)

var (
	scriptProbe        = load("probe")
	scriptUnlisten     = load("unlisten")
	scriptReadFile     = load("readfile")
	scriptReadTail     = load("notempty") + "exec timeout -s KILL \"$3\" sh -c " + shell.Quote(load("readtail")) + ` sh "$@"`
	scriptWriteFile    = load("sync", "writefile")
	scriptMake         = load("sync", "make")
	scriptMkdirAll     = load("enter", "mkdirall")
	scriptSymlink      = load("symlink")
	scriptRemove       = load("remove")
	scriptStatGNU      = load("stat_gnu")
	scriptFileSizes    = load("filesizes")
	scriptRename       = load("rename")
	scriptCompress     = load("compress")
	scriptListGNU      = load("list_gnu")
	scriptStatPlain    = load("stat_plain") + "info \"$1\"\n"
	scriptListPlain    = load("stat_plain", "list_plain")
	scriptRun          = load("run")
	scriptRemoveTree   = private("unmountfirst", "enter", "removetree")
	scriptChownGroup   = load("enter", "chowngroup")
	scriptWriteTree    = load("writetree")
	scriptMount        = load("mount")
	scriptMakeShared   = load("makeshared")
	scriptUndoShared   = load("undoshared")
	scriptMountShared  = load("mounted", "mountshared")
	scriptUnmount      = load("mounted", "unmount")
	scriptListMounts   = load("listmounts")
	scriptBindSubPath  = load("bindsubpath")
	scriptEnsureV1     = load("cgroup", "ensure_v1")
	scriptEnsureV2     = load("cgroup", "ensure_v2")
	scriptRemoveCgroup = load("removecgroup")
	// Each of the two parts shifts its own arguments away.
	scriptEnsureSliceV1 = load("slice", "ensureslice", "cgroup", "ensure_v1")
	scriptEnsureSliceV2 = load("slice", "ensureslice", "cgroup", "ensure_v2")
	scriptRemoveSlice   = load("slice", "removeslice", "removecgroup")
	scriptListCgroups   = load("listcgroups")
	scriptFacts         = load("facts")
	scriptMeasure       = load("filesystems", "measure")
	scriptSample        = load("filesystems", "sample")
	scriptDiskUsage     = load("diskusage")
	scriptLock          = load("purge", "lock")
	scriptGuard         = load("guard")
	scriptTakeover      = load("purge", "takeover")
	scriptReadRange     = load("opened", "readrange")
	scriptStatOpen      = load("opened", "statopen")
)
