// Package host declares the operations of a host that its node uses. host/local implements it
// for the local host, host/ssh for a remote host. The packages above do not know which one they
// use. host/hosttest is the test suite that both implementations pass.
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

// Host is one host. If the context has no deadline, each method sets its own. On a remote host
// each method takes one round trip, so callers prefer WriteTree and Make to a loop of WriteFile
// and MkdirAll. Methods are safe for concurrent use.
type Host interface {
	// Name is the name of the host in logs and errors.
	Name() string
	// Dial opens a connection from the host: network "unix" or "tcp".
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// Listen listens on the host: network "unix" or "tcp".
	Listen(ctx context.Context, network, address string) (net.Listener, error)

	Files
	Mounts
	Cgroups
	Meters

	// Run runs one command and waits until it ends. A non-zero exit code is not an error: see
	// Result.
	Run(ctx context.Context, cmd Command) (Result, error)
	// Start starts a program that stays. The program must end when its standard input is closed;
	// that also happens when the session ends or the process that started the program ends. If
	// the program does not exist, Start fails, or the output of the process says so. The program may
	// print much: that delays no other call.
	Start(ctx context.Context, args ...string) (Process, error)
	// Facts reads the properties of the host. They change slowly, so callers cache them.
	Facts(ctx context.Context) (Facts, error)
	// ClockOffset returns the clock of the host minus the local clock, and the error bound of
	// that.
	ClockOffset(ctx context.Context) (offset, uncertainty time.Duration, err error)
	// Lock creates path and its parent directory, takes an exclusive lock on it, and writes
	// holder into the file. If another process holds the lock, the error is a *LockedError
	// (which wraps ErrLocked) with the bytes that this process wrote. The lock is released by
	// Close, or when the session of the process ends.
	Lock(ctx context.Context, path string, holder []byte) (Lock, error)
	// Close closes every connection to the host. It does not stop anything there.
	Close() error
}

// Files are operations on the file system of the host. Paths are absolute. For a path that does
// not exist, errors.Is(err, fs.ErrNotExist) holds.
type Files interface {
	// ReadFile returns the content of a regular file of at most max bytes. Of a larger file it
	// returns the first max bytes, and an error that wraps ErrTooLarge.
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	// ReadTail returns at most max bytes from the end of a regular file. It opens the last
	// element of path without following a link and without blocking.
	ReadTail(ctx context.Context, path string, max int64) ([]byte, error)
	// WriteFile replaces a file atomically (temporary name, then rename) and creates its parents
	// with mode 0750. It syncs the content before the rename, and the rename before it returns:
	// a power cut at any time leaves the old content or the new. After an error the file may
	// have either.
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
	// WriteTree makes dir hold exactly tree and switches atomically, in the layout of the
	// kubelet's AtomicWriter (..data link). It writes nothing if the content is unchanged;
	// paths, bytes, modes and owners count as content. Files that it did not write itself stay.
	WriteTree(ctx context.Context, dir string, tree Tree) error
	// MkdirAll creates directories. If the last one does not exist, it gets exactly mode (no
	// umask), the owner if owner is not nil, and keeps a setgid bit that it inherits from its
	// parent. A directory that exists is not changed, because it may belong to anyone. Missing
	// parents get mode without the write bits of group and others.
	MkdirAll(ctx context.Context, path string, mode fs.FileMode, owner *Owner) error
	// Make creates directories and files in order, as MkdirAll and WriteFile do, in one round
	// trip. Only Synced files survive a power cut. After an error any of them may exist. made
	// reports for each entry whether nothing was at its path before.
	Make(ctx context.Context, entries ...Entry) (made []bool, err error)
	// Symlink creates or replaces the link at path, and creates its parents with mode 0755.
	Symlink(ctx context.Context, target, path string) error
	// Stat does not follow a link in the last element of path.
	Stat(ctx context.Context, path string) (FileInfo, error)
	// FileSizes returns the size in bytes of each regular file, in one round trip and without
	// following links: NoFile for a path that does not exist, 0 for anything else.
	FileSizes(ctx context.Context, paths []string) ([]int64, error)
	// List returns the entries of a directory, sorted by name.
	List(ctx context.Context, dir string) ([]FileInfo, error)
	// Remove removes one file or one empty directory.
	Remove(ctx context.Context, path string) error
	// Rename renames from to to within one file system. If to exists, the error wraps
	// fs.ErrExist.
	Rename(ctx context.Context, from, to string) error
	// Compress writes path.gz from the regular file at path, with the same mode, then removes
	// path. It runs at the lowest priority on the host. It replaces path.gz; until that is
	// complete, its name is path.X.tmp with any X. An interrupted call leaves that file.
	Compress(ctx context.Context, path string) error
	// RemoveTree removes a directory and its content. It does not follow links and never crosses
	// into a mount: if there is one, it fails with ErrMountInside before it removes anything. It
	// returns no error if path does not exist.
	//
	// It first unmounts the paths in unmount, which must be below path: at each, the topmost mount,
	// if that is a file system in memory which nothing uses. It ignores a path where nothing is
	// mounted.
	RemoveTree(ctx context.Context, path string, unmount ...string) error
	// ChownGroup gives the tree at path to group gid with the kubelet's fsGroup rules (setgid on
	// directories, rw for the group, only r if readOnly).
	ChownGroup(ctx context.Context, path string, gid int64, readOnly bool) error
	// Open opens a regular file for ranged reads, for example a log that is followed.
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

// Entry is one argument of Make: a directory if Mode has fs.ModeDir, else a file.
type Entry struct {
	Path string
	Mode fs.FileMode
	Data []byte // of a file
	// Synced: the file survives a power cut, as with WriteFile.
	Synced bool
	// InPlace: if a regular file exists, it is overwritten and keeps its inode, because
	// containers have that inode mounted. A concurrent reader may see a part of the content.
	InPlace bool
}

// Owner is a user and a group; -1 leaves that one unchanged.
type Owner struct{ UID, GID int64 }

// NoFile is the size that FileSizes returns for a path that does not exist.
const NoFile = -1

// FileInfo is the result of Stat and List.
type FileInfo struct {
	Name   string // base name
	Mode   fs.FileMode
	Size   int64
	Target string // of a symbolic link
	Inode  uint64 // distinguishes a rotated file from the one before it
	Device uint64
	GID    int64     // the group
	Time   time.Time // of the last modification, by the clock of the host
}

// File is an open file on the host.
type File interface {
	io.ReaderAt
	io.Closer
	// Stat describes the open file, even if its path now names another one.
	Stat() (FileInfo, error)
}

// Mounts are the mounts of the host, in the mount namespace of its container runtime.
type Mounts interface {
	// Mount creates target as a directory and mounts on it. If the same mount exists, it does
	// nothing. If the source of a bind mount is a file, target becomes a file. Network file
	// systems are mounted by mount(8), with the host's helper program for the type; Mount makes
	// one attempt, unless the options ask for more (retry=).
	Mount(ctx context.Context, m Mount) error
	// Unmount removes all mounts that are stacked at target; no error if there is none. A mount
	// that is in use stays, and the error is a *BusyError. Memory and read-only mounts cannot
	// lose data: they are detached and disappear with their last user. A mount with another one
	// below it is in use by that, and the error is ErrMountInside. Unmount does not wait for a
	// remote file server that does not answer.
	Unmount(ctx context.Context, target string) error
	// MakeShared creates dir and, if the mount that contains it is not shared, mounts it on
	// itself as a shared mount. Then containers see later mounts below dir, and the host sees the
	// mounts that containers make there (mountPropagation). It lasts until the host reboots.
	MakeShared(ctx context.Context, dir string) error
	// UndoShared removes the bind mount of dir on itself that MakeShared created; no error if
	// there is none. Another mount at dir, such as a disk, stays.
	UndoShared(ctx context.Context, dir string) error
	// ListMounts returns the mount points at and below dir, deepest first.
	ListMounts(ctx context.Context, dir string) ([]Mount, error)
	// BindSubPath mounts a directory or file inside of a directory on a target. It is safe
	// against a pod that changes that directory at the same time: see SubPath.
	BindSubPath(ctx context.Context, s SubPath) error
}

// SubPath is a path inside of a directory that others may change at any time, to be mounted at
// Target. Links inside are followed and must stay inside. Missing elements of the path become
// directories with the mode of Root, unless a link leads to them. BindSubPath mounts exactly
// the file or directory that it checked: when it returns nil, nothing outside of Root is at Target, and it opens no
// FIFO and no device.
//
// BindSubPath creates Target and its parents, which must be out of reach of pods. If Target
// already shows the same, it stays; if it shows something else, it is mounted again. Errors:
// ErrSubPathMake, ErrSubPathUnsafe, or an error of the host.
type SubPath struct {
	Root   string // absolute; links in it are followed, because they belong to the host
	Path   string // clean, relative, without ".."
	Target string // absolute
}

// Check returns an error if s is not a valid path inside of a directory.
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
	Source  string // device, "tmpfs", or a share of a file server, "10.0.0.1:/srv"
	Target  string
	Type    string // "tmpfs", "bind", "nfs", or another type of the kernel
	Options []string
}

// Cgroups are the control groups of the host, for either cgroup version and either driver.
type Cgroups interface {
	// EnsureCgroup creates the cgroup (a slash path such as /kubepods/burstable/pod<uid>) under
	// every controller and sets its limits. For a path of nested slices
	// (/kubepods.slice/kubepods-pod<uid>.slice), systemd creates the slice and sets the limits;
	// otherwise systemd would change them.
	EnsureCgroup(ctx context.Context, path string, r CgroupResources) error
	// RemoveCgroup removes the cgroup and its empty children, and stops a slice; no error if
	// there is none. With kill, it kills the processes that still run in them after a second.
	RemoveCgroup(ctx context.Context, path string, kill bool) error
	// ListCgroups returns the names of the direct children under any controller; none if path
	// does not exist.
	ListCgroups(ctx context.Context, path string) ([]string, error)
}

// CgroupResources are limits. Zero writes nothing, so a new cgroup keeps the default of the
// kernel; a negative limit writes "unlimited".
type CgroupResources struct {
	CPUShares     uint64 // cgroup v1 scale; converted to cpu.weight on v2
	CPUQuotaUS    int64  // per CPUPeriodUS
	CPUPeriodUS   uint64
	MemoryBytes   int64
	PidsMax       int64
	HugePageBytes map[string]int64 // by page size as the kernel names it, "2MB"
}

// Meters measure how much of the host's resources are free and in use.
type Meters interface {
	// Sample reads counters of the host and of cgroups, in one round trip.
	Sample(ctx context.Context, r SampleRequest) (Sampled, error)
	// Measure measures the host, the cgroup (none if empty), and the file systems that hold
	// these paths, in their order. For a path that does not exist, it takes the nearest parent
	// that exists.
	Measure(ctx context.Context, cgroup string, paths ...string) (Measured, error)
	// DiskUsage sums the content of each of these directories, within one file system and
	// without following links; a directory that does not exist counts zero.
	DiskUsage(ctx context.Context, dirs ...string) ([]Usage, error)
}

// Measured is the state of a host at one time.
type Measured struct {
	// MemoryBytes is the total memory. WorkingSetBytes is the part in use that only a process
	// could give back: all but free memory and inactive file pages.
	MemoryBytes, WorkingSetBytes int64
	// PidsMax is the limit of threads, Pids their current number.
	PidsMax, Pids int64
	// OOMKills is the number of processes that the OOM killer of the kernel has killed since
	// boot, for limits of their cgroups or of the host; -1 if the kernel does not count them.
	OOMKills int64
	// CgroupBytes is the memory limit of the cgroup, 0 without a limit or a cgroup, and
	// CgroupWorkingSetBytes the part of it in use.
	CgroupBytes, CgroupWorkingSetBytes int64
	FileSystems                        []FileSystem
}

// FileSystem is the size of a file system, and the free space for users other than root.
type FileSystem struct {
	Device             uint64 // distinguishes file systems
	Bytes, FreeBytes   int64
	Inodes, InodesFree int64 // both 0 if the file system does not count them
}

// Usage is the size of a directory's content.
type Usage struct{ Bytes, Inodes int64 }

// Command is one program to run on the host, without a shell.
type Command struct {
	Args    []string
	Env     []string // added to the environment of the host
	Dir     string
	Stdin   []byte
	Timeout time.Duration // required
}

// Result of a command. Of each stream, output beyond 1 MiB is dropped.
type Result struct {
	Stdout, Stderr []byte
	ExitCode       int
}

// Process is a program that stays. Read reads its standard output and standard error, Write
// writes to its standard input; neither has a deadline. Read returns io.EOF when the program has
// ended, and an error that wraps ErrUnreachable when its state is no longer known.
type Process interface {
	io.ReadWriteCloser
}

// Facts are properties of a host.
type Facts struct {
	Hostname      string
	Addresses     []net.IP // global unicast, the one of the default route first
	Routed        bool     // there is an IPv4 default route
	Architecture  string   // as GOARCH spells it
	OS            string   // "linux"
	KernelVersion string
	OSImage       string // PRETTY_NAME of os-release
	MachineID     string
	BootID        string
	SystemUUID    string
	CPUs          int
	PhysicalCores int // 0 if the kernel does not say
	CPUSockets    int // 0 if the kernel does not say
	MemoryBytes   int64
	SwapBytes     int64
	PidsMax       int64
	CgroupVersion int              // 1 or 2
	HugePages     map[string]int64 // reserved bytes by page size, "2MB"
	RootDiskBytes int64            // of the root file system
	RootDiskInode int64            // of the root file system
	ResolvConf    []byte           // /etc/resolv.conf
	// CanLowerOOMScore is false without CAP_SYS_RESOURCE: then every container with a negative
	// oom_score_adj would fail.
	CanLowerOOMScore bool
	AppArmor         bool // the kernel enforces AppArmor profiles
	// SELinux is on, with a policy loaded. SELinuxEnforcing: it denies access instead of only
	// logging.
	SELinux, SELinuxEnforcing bool
	// Swaps are the active swap areas, as /proc/swaps names them. SwapControl: the kernel
	// accounts swap per cgroup, so that a container can be denied it.
	Swaps       []string
	SwapControl bool
	// ThermalThrottle holds the CPUs that have a thermal_throttle directory, ascending.
	ThermalThrottle []int
}

// Lock is a held lock.
type Lock interface {
	// Lost is closed when this process may no longer hold the lock.
	Lost() <-chan struct{}
	Close() error
}

var (
	// ErrLocked: another live process holds the lock.
	ErrLocked = errors.New("locked by another process")
	// ErrTooLarge: a file is larger than the caller accepts.
	ErrTooLarge = errors.New("file too large")
	// ErrMountInside: a tree cannot be removed, or a mount unmounted, because it contains a mount.
	ErrMountInside = errors.New("something is still mounted inside")
	// ErrSubPathUnsafe: a subPath leads out of its directory, or was changed during the check.
	ErrSubPathUnsafe = errors.New("the subPath does not stay within its directory")
	// ErrSubPathMake: a missing part of a subPath cannot be created.
	ErrSubPathMake = errors.New("the subPath cannot be made")
	// ErrBusy: a mount is in use.
	ErrBusy = errors.New("in use")
	// ErrUnreachable: the host did not answer, so its state is unknown.
	ErrUnreachable = errors.New("host unreachable")
)

// LockedError reports that another process holds a lock. It has the record that the holder wrote
// into the file.
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
	// Users are some of the processes that use the mount, "42 (postgres)"; empty if none does,
	// for example if another mount or a loop device holds it.
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
