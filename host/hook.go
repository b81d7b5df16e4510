package host

import "context"

// Hook sees every call to the machine and to its runtime, with the call's
// label ("cri/RunPodSandbox", "host/WriteTree"). It runs call, or not, and
// returns what the caller shall see: the one place for faults, traces and
// counts. A nil Hook runs the call.
type Hook func(ctx context.Context, label string, call func(context.Context) error) error

// Do runs call under the hook.
func (h Hook) Do(ctx context.Context, label string, call func(context.Context) error) error {
	if h == nil {
		return call(ctx)
	}
	return h(ctx, label, call)
}
