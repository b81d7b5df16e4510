package budget

// Limits of one host, by budget. Zero means the default.
type Limits struct {
	ReplyBytes  int64 // default 8 MiB
	Items       int64 // default 16,384
	Pods        int64 // default 1,024
	StatusBytes int64 // default 1 MiB
	LineBytes   int64 // default 64 KiB
	OutputBytes int64 // default 8 MiB
	OpenCalls   int64 // default 1,024
	Channels    int64 // default 128
	FileBytes   int64 // default 16 MiB
	Memory      int64 // default 16 MiB
}

// defaults are far above the needs of an ordinary node with 110 pods, and low enough that a host that uses
// all of them at once costs less than 64 MiB. A driver has more if the pods that its node admits could
// need it: see package fleet.
var defaults = Limits{
	ReplyBytes: 8 << 20, Items: 16 << 10, Pods: 1 << 10, StatusBytes: 1 << 20,
	LineBytes: 64 << 10, OutputBytes: 8 << 20, OpenCalls: 1 << 10, Channels: 128,
	FileBytes: 16 << 20, Memory: 16 << 20,
}

// Of is the limit of one budget; that of Panic is 0.
func (l Limits) Of(k Kind) int64 {
	if set := l.field(k); set > 0 {
		return set
	}
	return defaults.field(k)
}

func (l Limits) field(k Kind) int64 {
	switch k {
	case ReplyBytes:
		return l.ReplyBytes
	case Items:
		return l.Items
	case Pods:
		return l.Pods
	case StatusBytes:
		return l.StatusBytes
	case LineBytes:
		return l.LineBytes
	case OutputBytes:
		return l.OutputBytes
	case OpenCalls:
		return l.OpenCalls
	case Channels:
		return l.Channels
	case FileBytes:
		return l.FileBytes
	case Memory:
		return l.Memory
	}
	return 0
}
