package ownership

import (
	"context"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/version"
)

// Take claims the host for the node in c.
func Take(ctx context.Context, cfg *config.Host, machine host.Host, client *cri.Client, c owner.Config) (*owner.Claim, error) {
	c.Host, c.Runtime, c.RootDir = machine, client, cfg.RootDirectory
	c.Instance, c.Version, c.PID, c.StartedAt = string(uuid.NewUUID()), version.Version, os.Getpid(), time.Now()
	c.Endpoint, c.AllowForeignPods = cfg.SocketPath(), cfg.AllowForeignPods
	return owner.Take(ctx, c)
}

// Release releases the claim: always the lock, and the owner file if nothing of Bowline's is left. It
// logs its error, as no caller is left to handle it.
func Release(ctx context.Context, claim Claim) {
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := claim.Release(ctx); err != nil {
		log.Error(err, "Failed to release the host completely; the next run takes it over")
	}
}
