// Package host declares what a machine offers to the node that drives it. The
// machine may be this one (host/local) or one at the end of an SSH connection;
// nothing above this package knows which. host/hosttest is the one suite that
// every implementation passes.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path"
	"strings"
	"time"
)

// Host is one machine. Every method has a deadline of its own where the context
// has none, and is one round trip where the machine is far, so callers prefer
// WriteTree and Make to a loop of WriteFile and MkdirAll. Methods are safe for concurrent use.
type Host interface {
	// Name is how logs and errors call the machine.
	Name() string
	// Dial opens a connection from the machine: network "unix" or "tcp".
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// Listen listens on the machine: network "unix" or "tcp".
	Listen(ctx context.Context, network, address string) (net.Listener, error)

	Files
	Mounts
	Cgroups
	Meters

	// Run runs one command to its end. A non-zero exit is not an error: see Result.
	Run(ctx context.Context, cmd Command) (Result, error)
	// Start starts a program that stays: it must end when its standard input does,
	// which is when it is closed, and when the session or the process that started it
	// is over. A program that is not there is an error of Start, or its only words.
	Start(ctx context.Context, args ...string) (Process, error)
	// Facts reads what the machine is. They change slowly; callers cache them.
	Facts(ctx context.Context) (Facts, error)
	// ClockOffset is the machine's clock minus ours, and how far it may be off.
	ClockOffset(ctx context.Context) (offset, uncertainty time.Duration, err error)
	// Lock takes an exclusive lock on the machine at path (its parent directory
	// is made) and writes holder into the file. ErrLocked, with the present
	// holder's bytes in a *LockedError, if another process has it. The lock goes
	// when it is closed, or with the session of the process that took it.
	Lock(ctx context.Context, path string, holder []byte) (Lock, error)
	// Close ends every connection to the machine. It does not stop anything there.
	Close() error
}

// Files are operations on the machine's file system. Paths are absolute. A
// missing path satisfies errors.Is(err, fs.ErrNotExist).
type Files interface {
	// ReadFile returns at most max bytes from the start of a regular file; an
	// error wrapping ErrTooLarge if there are more.
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	// ReadTail returns at most max bytes from the end of a regular file. The last
	// element of path is opened without following a link and without blocking.
	ReadTail(ctx context.Context, path string, max int64) ([]byte, error)
	// WriteFile replaces a file atomically (temporary name, then rename), making its
	// parents with mode 0750. The content is on the disk before the file has its name,
	// and the name before WriteFile returns: a power cut at any time leaves the old
	// content or the new. After an error either may be there.
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
	// WriteTree makes dir hold exactly tree, flipped atomically in the kubelet's
	// AtomicWriter layout (..data link). Unchanged content writes nothing; paths,
	// bytes, modes and owners count as content. What it did not make itself stays.
	WriteTree(ctx context.Context, dir string, tree Tree) error
	// MkdirAll makes directories; the last one, where it is missing, gets exactly mode
	// (no umask), and the owner if owner is not nil; setgid and sticky bits of its
	// parent's stay. One that is there stays as it is: it may be anybody's.
	// Missing parents get mode without the write bits of group and others.
	MkdirAll(ctx context.Context, path string, mode fs.FileMode, owner *Owner) error
	// Make makes directories and files in order, each as MkdirAll and WriteFile make
	// one, in one round trip; only files that are Synced survive a power cut. After an
	// error any of them may be there. made tells,
	// for each, whether nothing was at its path before.
	Make(ctx context.Context, things ...Thing) (made []bool, err error)
	// Symlink makes or replaces the link at path, and its parents with mode 0755.
	Symlink(ctx context.Context, target, path string) error
	// Stat does not follow a link in the last element.
	Stat(ctx context.Context, path string) (FileInfo, error)
	// StatAll is Stat for each path, in one round trip; what is not there has the
	// zero FileInfo.
	StatAll(ctx context.Context, paths []string) ([]FileInfo, error)
	// List returns a directory's entries, sorted by name.
	List(ctx context.Context, dir string) ([]FileInfo, error)
	// Remove removes one file or one empty directory.
	Remove(ctx context.Context, path string) error
	// Rename gives what is at from the name to, in the same file system; an error
	// wrapping fs.ErrExist if something has that name already.
	Rename(ctx context.Context, from, to string) error
	// Compress makes path.gz of the regular file at path, with its mode, then removes
	// path; it gives way to everything else that the machine does. path.gz is replaced;
	// until it is whole it is called path.X.tmp, X being anything: one that was cut off
	// leaves that.
	Compress(ctx context.Context, path string) error
	// RemoveTree removes a directory and what it holds, without following links
	// and never crossing into a mount: ErrMountInside if there is one, before
	// anything is removed. No error if path is missing.
	RemoveTree(ctx context.Context, path string) error
	// ChownGroup gives the tree at path to group gid with the kubelet's fsGroup rules
	// (setgid on directories, group rw, r only where readOnly).
	ChownGroup(ctx context.Context, path string, gid int64, readOnly bool) error
	// Open opens a regular file for ranged reads; a log that is followed.
	Open(ctx context.Context, path string) (File, error)
}

// Tree is the wanted content of a directory, by slash-separated relative path.
type Tree map[string]TreeFile

// TreeFile is one file of a Tree.
type TreeFile struct {
	Data  []byte
	Mode  fs.FileMode // permission bits
	Owner *Owner      // nil: root
}

// Thing is what Make makes: a directory where Mode has fs.ModeDir, else a file.
type Thing struct {
	Path string
	Mode fs.FileMode
	Data []byte // of a file
	// Synced: the file survives a power cut, as one of WriteFile does.
	Synced bool
	// InPlace: a regular file that is there is written itself and keeps its inode, by which
	// containers have it mounted. Who reads it meanwhile may see a part of it.
	InPlace bool
}

// Owner is a user and a group; -1 leaves that half alone.
type Owner struct{ UID, GID int64 }

// FileInfo is what Stat and List tell.
type FileInfo struct {
	Name   string // base name
	Mode   fs.FileMode
	Size   int64
	Target string // of a symbolic link
	Inode  uint64 // tells a rotated file from the one before
	Device uint64
	GID    int64     // the group
	Time   time.Time // modification, by the machine's clock
}

// File is an open file on the machine.
type File interface {
	io.ReaderAt
	io.Closer
	// Stat sees the open file, whatever its path names now.
	Stat() (FileInfo, error)
}

// Mounts are the machine's mounts, in the namespace of its container runtime.
type Mounts interface {
	// Mount makes target a directory and mounts on it; nothing happens where the
	// same is mounted already. The target of a bound file is made a file. What another
	// machine shares is mounted by mount(8), with the program that it has for the type;
	// one attempt is made, unless the options say more (retry=).
	Mount(ctx context.Context, m Mount) error
	// Unmount takes away what is mounted at target, all of a stack; no error if
	// there is nothing. A mount that is in use stays, and is a *BusyError, unless
	// nothing can be lost of it: memory, and what is read-only, is detached and goes
	// with its last user. It waits for no other machine, if that is away.
	Unmount(ctx context.Context, target string) error
	// MakeShared makes dir, and mounts it on itself where the mount that it is in is not
	// shared, so that what is mounted below is seen in containers and what they mount is
	// seen outside (mountPropagation). It stays so until the machine restarts.
	MakeShared(ctx context.Context, dir string) error
	// UndoShared takes away the mount of dir on itself that MakeShared has made; no error
	// where there is none. Another mount at dir, such as one of a disk, stays.
	UndoShared(ctx context.Context, dir string) error
	// ListMounts returns the mount points at and below dir, deepest first.
	ListMounts(ctx context.Context, dir string) ([]Mount, error)
	// BindSubPath mounts the directory or file at a path inside of a directory on
	// a target, whatever a pod does to what is inside meanwhile: see SubPath.
	BindSubPath(ctx context.Context, s SubPath) error
}

// SubPath is a part of a directory whose content others change at any time, to
// be shown at Target. Links inside are followed, and must stay inside; what is
// missing of the path, and not a link's, becomes directories with the mode of
// Root. What is mounted is what was checked: nothing outside of Root is ever at
// Target when BindSubPath returns nil, and no FIFO or device is opened.
//
// Target and its parents are made, and must be where no pod reaches. A target
// that shows the same already stays; one that shows something else is mounted
// anew. Errors: ErrSubPathMake, ErrSubPathUnsafe, or of the machine.
type SubPath struct {
	Root   string // absolute; links in it are followed, as they are the machine's
	Path   string // clean, relative, without ".."
	Target string // absolute
}

// Check refuses what is no part of a directory.
func (s SubPath) Check() error {
	if !path.IsAbs(s.Root) || !path.IsAbs(s.Target) || path.Clean(s.Target) == "/" {
		return fmt.Errorf("bind a subPath of %q to %q: both must be absolute paths", s.Root, s.Target)
	}
	if s.Path == "" || s.Path != path.Clean(s.Path) || path.IsAbs(s.Path) || s.Path == ".." || strings.HasPrefix(s.Path, "../") {
		return fmt.Errorf("bind the subPath %q: must be a clean relative path that does not leave its directory", s.Path)
	}
	return nil
}

// Mount is one mount.
type Mount struct {
	Source  string // device, "tmpfs", or what another machine shares, "10.0.0.1:/srv"
	Target  string
	Type    string // "tmpfs", "bind", "nfs", or another of the kernel's
	Options []string
}

// Cgroups are the machine's control groups, whichever version and driver.
type Cgroups interface {
	// EnsureCgroup makes the cgroup (a slash path such as
	// /kubepods/burstable/pod<uid>) under every controller and sets its limits. A path
	// of nested slices (/kubepods.slice/kubepods-pod<uid>.slice) is made by systemd, and
	// the limits set by it: only so does it leave them be.
	EnsureCgroup(ctx context.Context, path string, r CgroupResources) error
	// RemoveCgroup removes it and its empty children, and stops a slice; no error if
	// there is none.
	// With kill, what still runs in them after a second is killed first.
	RemoveCgroup(ctx context.Context, path string, kill bool) error
	// ListCgroups returns the names of the direct children, from any controller;
	// none for a path that is not there.
	ListCgroups(ctx context.Context, path string) ([]string, error)
}

// CgroupResources are limits; zero writes nothing, which leaves the kernel's
// default in a new cgroup, and a negative limit writes "unlimited".
type CgroupResources struct {
	CPUShares     uint64 // cgroup v1 scale; turned into cpu.weight on v2
	CPUQuotaUS    int64  // of each CPUPeriodUS
	CPUPeriodUS   uint64
	MemoryBytes   int64
	PidsMax       int64
	HugePageBytes map[string]int64 // by page size as the kernel names it, "2MB"
}

// Meters tell what is left of the machine, and who has the rest.
type Meters interface {
	// Measure reads what is left: of the machine, of what a cgroup may have (empty:
	// none), and of the file systems that hold these paths (or the nearest parent of
	// each that exists), in their order.
	Measure(ctx context.Context, cgroup string, paths ...string) (Measured, error)
	// DiskUsage sums what each of these directories holds, on its own file system
	// alone, without following links; a missing one holds nothing.
	DiskUsage(ctx context.Context, dirs ...string) ([]Usage, error)
}

// Measured is the state of a machine at one time.
type Measured struct {
	// MemoryBytes is what there is; WorkingSetBytes what is used of it and could not be
	// had without taking it from a process: all but free memory and file pages that
	// nobody has touched of late.
	MemoryBytes, WorkingSetBytes int64
	// PidsMax is how many threads there may be, Pids how many there are.
	PidsMax, Pids int64
	// OOMKills is how many processes the kernel has killed for want of memory since the
	// machine came up, of their cgroups' or of its own; -1 where it does not count them.
	OOMKills int64
	// CgroupBytes is the memory that the cgroup may have, 0 without a limit or a cgroup,
	// and CgroupWorkingSetBytes what it uses of it.
	CgroupBytes, CgroupWorkingSetBytes int64
	FileSystems                        []FileSystem
}

// FileSystem is what there is of one, and what is left for users other than root.
type FileSystem struct {
	Device             uint64 // tells one from another
	Bytes, FreeBytes   int64
	Inodes, InodesFree int64 // both 0 where the file system does not count them
}

// Usage is what a directory holds.
type Usage struct{ Bytes, Inodes int64 }

// Command is one program run on the machine, without a shell.
type Command struct {
	Args    []string
	Env     []string // added to the machine's own
	Dir     string
	Stdin   []byte
	Timeout time.Duration // required
}

// Result of a command. Output beyond 1 MiB a stream is dropped.
type Result struct {
	Stdout, Stderr []byte
	ExitCode       int
}

// Process is a program that stays. Read and Write are its standard output, into which
// its standard error goes too, and its standard input; neither has a deadline. Read
// returns io.EOF when the program has ended, and an error that wraps ErrUnreachable
// when nothing is known of it any more.
type Process interface {
	io.ReadWriteCloser
}

// Facts of a machine.
type Facts struct {
	Hostname      string
	Addresses     []net.IP // global unicast, the one with the default route first
	Routed        bool     // there is a default route (of IPv4)
	Architecture  string   // GOARCH's names
	OS            string   // "linux"
	KernelVersion string
	OSImage       string // PRETTY_NAME of os-release
	MachineID     string
	BootID        string
	SystemUUID    string
	CPUs          int
	MemoryBytes   int64
	SwapBytes     int64
	PidsMax       int64
	CgroupVersion int              // 1 or 2
	HugePages     map[string]int64 // reserved bytes by page size, "2MB"
	RootDiskBytes int64            // of the file system that holds the root directory
	RootDiskInode int64            // inodes of it
	ResolvConf    []byte           // /etc/resolv.conf
	// CanLowerOOMScore is false without CAP_SYS_RESOURCE: a negative
	// oom_score_adj would make every container fail.
	CanLowerOOMScore bool
	AppArmor         bool // the kernel enforces AppArmor profiles
	// SELinux is on, with a policy loaded; SELinuxEnforcing: it denies, and does not
	// only log.
	SELinux, SELinuxEnforcing bool
	// Swaps are the swap areas that are on, as /proc/swaps names them. SwapControl: the
	// kernel counts swap by cgroup, so that a container can be denied it.
	Swaps       []string
	SwapControl bool
	// ThermalThrottle holds the CPUs that have a thermal_throttle directory, ascending.
	ThermalThrottle []int
}

// Lock is a held lock.
type Lock interface {
	// Lost is closed when the lock may no longer be ours.
	Lost() <-chan struct{}
	Close() error
}

var (
	// ErrLocked: another live process holds the lock.
	ErrLocked = errors.New("locked by another process")
	// ErrTooLarge: a file is larger than the caller takes.
	ErrTooLarge = errors.New("file too large")
	// ErrMountInside: a tree cannot be removed because something is mounted in it.
	ErrMountInside = errors.New("something is still mounted inside")
	// ErrSubPathUnsafe: a subPath leads out of its directory, or was changed while
	// it was looked at.
	ErrSubPathUnsafe = errors.New("the subPath does not stay within its directory")
	// ErrSubPathMake: what is missing of a subPath cannot be made.
	ErrSubPathMake = errors.New("the subPath cannot be made")
	// ErrBusy: a mount is in use.
	ErrBusy = errors.New("in use")
	// ErrUnreachable: the machine did not answer; nothing is known of its state.
	ErrUnreachable = errors.New("host unreachable")
)

// LockedError carries what the holder of a lock wrote into it.
type LockedError struct {
	Path   string
	Holder []byte
}

func (e *LockedError) Error() string { return e.Path + ": " + ErrLocked.Error() }
func (e *LockedError) Unwrap() error { return ErrLocked }

// BusyError names a mount that cannot be unmounted because it is in use.
type BusyError struct {
	Target string
	Type   string // of the file system
	Source string
	// Users are some of the processes that hold it, "42 (postgres)"; none where it is
	// held by what is no process, such as another mount or a loop device.
	Users []string
}

func (e *BusyError) Error() string {
	by := ", by no process that can be seen: another mount or a device inside may hold it"
	if len(e.Users) > 0 {
		by = " by process " + strings.Join(e.Users, ", ")
	}
	return fmt.Sprintf("%s (%s of %s) is in use%s", e.Target, e.Type, e.Source, by)
}

func (e *BusyError) Unwrap() error { return ErrBusy }
