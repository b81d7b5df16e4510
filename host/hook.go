package host

import "context"

// Hook intercepts every call to the host and to its runtime, with the label of the call
// ("cri/RunPodSandbox", "host/WriteTree"). It runs call or not, and returns the error that the
// caller gets. It is the one place for fault injection, traces and counters. A nil Hook runs the
// call.
type Hook func(ctx context.Context, label string, call func(context.Context) error) error

// Do runs call under the hook.
func (h Hook) Do(ctx context.Context, label string, call func(context.Context) error) error {
	if h == nil {
		return call(ctx)
	}
	return h(ctx, label, call)
}
