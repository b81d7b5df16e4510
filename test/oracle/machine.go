package oracle

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// NothingLeft: within timeout the host is as in the snapshot before. The error lists what differs.
func NothingLeft(ctx context.Context, lab *labtest.Lab, runtime *cri.Client, host string, before labtest.Snapshot, timeout time.Duration) error {
	return labtest.Until(ctx, timeout, host+" as it was before", func(ctx context.Context) error {
		now, err := lab.Snapshot(ctx, runtime, host)
		if err != nil {
			return err
		}
		if diff := labtest.Diff(before, now); len(diff) > 0 {
			return fmt.Errorf("%d differences:\n%s", len(diff), strings.Join(diff, "\n"))
		}
		return nil
	})
}
