package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/logs"
	"github.com/bowline-k8s/bowline/features"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/nodecert"
	"github.com/bowline-k8s/bowline/nodelogs"
	"github.com/bowline-k8s/bowline/provider/api"
)

// server creates the node's HTTPS server. It binds the port at once, so that the Node object names
// a port that answers.
func (n *Node) server(ctx context.Context, loop *loopHooks) (*api.Server, error) {
	certificate, err := n.certificate(ctx)
	if err != nil {
		return nil, err
	}
	authenticator, err := api.NewAuthenticator(n.authentication(ctx))
	if err != nil {
		return nil, err
	}
	if err := n.listen(ctx, certificate); err != nil {
		return nil, err
	}
	minTLS, err := flag.TLSVersion(n.cfg.TLSMinVersion)
	if err != nil {
		return nil, err
	}
	suites, err := flag.TLSCipherSuites(n.cfg.TLSCipherSuites)
	if err != nil {
		return nil, err
	}
	curves, err := flag.TLSCurvePreferences(n.cfg.TLSCurvePreferences)
	if err != nil {
		return nil, err
	}
	on := n.features.Enabled
	cfg := api.Config{
		NodeName: n.name, MinTLS: minTLS, CipherSuites: suites, Curves: curves, Listener: n.listener, Strangers: n.strangers, Certificate: certificate,
		Authenticator: authenticator, Authorizer: api.NewAuthorizer(n.authorization()),
		Pods: apiPods{loop}, Streams: streams{n.runtime, n.host.Streams, n.cfg.StreamingConnectionIdleTimeout.Duration, !on(features.ExtendWebSocketsToKubelet)}, Logs: n.readLog,
		SyncLoop: func() error { return n.loop.Healthy() },
		Configz:  func() (map[string]any, error) { return configz(n.cfg, n.logging, n.tracing) },
		Metrics:  n.metrics.handler(n.metricsState), ProbeMetrics: n.metrics.probeHandler(),
		SLIMetrics: n.metrics.health, Checked: n.metrics.health.Observe,
		Request: n.metrics.requests.Begin, Streamed: n.metrics.parts.Streamed,
		Stats: n.stats, SystemLogs: n.systemLogs(),
		Version: func() string { return n.metrics.version() }, Flags: n.flags,
		NoFlagz: !on(features.ComponentFlagz), NoStatusz: !on(features.ComponentStatusz), NoTunnels: !on(features.ExtendWebSocketsToKubelet),
		AllocatedPods: on(features.KubeletAllocatedPodsEndpoint),
		NoLogStreams:  !on(features.PodLogsQuerySplitStreams),
	}
	if on(features.ContainerCheckpoint) {
		cfg.Checkpoint = n.checkpoint
	}
	return api.New(cfg)
}

// listen binds the port, locally or on a remote host that listens for the node's API.
func (n *Node) listen(ctx context.Context, certificate getCertificate) (err error) {
	port := int(n.cfg.Server.Port)
	if n.cfg.Exposed() {
		n.exposed, err = newExposure(ctx, n, port, certificate)
		if err == nil {
			n.listener = n.exposed.listener
		}
		return err
	}
	address := net.JoinHostPort(n.cfg.Server.Address, strconv.Itoa(port))
	if n.listener, err = net.Listen("tcp", address); err != nil {
		return hint.Add(fmt.Errorf("the node's API needs %s: %w", address, err), "stop the kubelet or the other Bowline there, or choose another server.port")
	}
	return nil
}

// authentication returns how callers of the node's API authenticate.
func (n *Node) authentication(ctx context.Context) api.Authentication {
	a := api.Authentication{
		ClientCAs: n.cfg.Authentication.X509.ClientCAFile,
		TokenTTL:  n.cfg.Authentication.Webhook.CacheTTL.Duration,
		Anonymous: *n.cfg.Authentication.Anonymous.Enabled,

		ClientCAsOnce: !n.features.Enabled(features.ReloadKubeletClientCAFile),
	}
	if *n.cfg.Authentication.Webhook.Enabled {
		a.Tokens = n.cluster.Client.AuthenticationV1().TokenReviews()
	}
	if a.ClientCAs == "" {
		klog.FromContext(ctx).Error(nil, "Rejecting client certificates: clientCAFile is not set", "node", n.name, "setting", "authentication.x509.clientCAFile", "refused", "kubectl logs and exec")
	}
	return a
}

// authorization returns how callers of the node's API are authorized.
func (n *Node) authorization() api.Authorization {
	a := api.Authorization{
		AllowTTL: n.cfg.Authorization.Webhook.CacheAuthorizedTTL.Duration,
		DenyTTL:  n.cfg.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
	}
	if n.cfg.Authorization.Mode != config.AuthorizationAlwaysAllow {
		a.Reviews = n.cluster.Client.AuthorizationV1().SubjectAccessReviews()
	}
	return a
}

type getCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// certificate returns the serving certificate: from a file, signed by the cluster, or self-signed.
func (n *Node) certificate(ctx context.Context) (getCertificate, error) {
	if n.cfg.Server.TLSCertFile != "" {
		return api.CertFiles(n.cfg.Server.TLSCertFile, n.cfg.Server.TLSPrivateKeyFile, !n.features.Enabled(features.ReloadKubeletServerCertificateFile))
	}
	addresses := func() (out []net.IP) {
		for _, ip := range n.seen.load().ips {
			out = append(out, net.ParseIP(ip))
		}
		return out
	}
	self, err := api.SelfSigned(n.name, addresses())
	if signed := n.cfg.ServerTLSBootstrap; err != nil || signed == nil || !*signed {
		return self, err
	}
	n.serving, err = nodecert.NewServing(ctx, nodecert.ServingConfig{
		NodeName: n.name, Directory: n.cfg.Identity.CertificateDirectory, IPs: addresses,
		Node: n.cluster.Rest, Approver: n.cluster.Identity.Approver, Until: self,
		RenewFailed: n.metrics.parts.ServerCertificate(), Rotated: n.metrics.parts.ServerCertificate(),
	})
	if err != nil {
		return nil, err
	}
	return n.serving.Get, nil
}

// systemLogs returns the handler of /logs/; nil if it is disabled.
func (n *Node) systemLogs() http.Handler {
	if !*n.cfg.EnableSystemLogHandler {
		return nil
	}
	return &nodelogs.Handler{
		Host: n.host, Dir: "/var/log", Prefix: "/logs/", Query: *n.cfg.EnableSystemLogQuery,
		Own: func(ctx context.Context, w io.Writer, o nodelogs.Options) error {
			return n.logs.Print(ctx, w, n.cfg.Name, n.name, o)
		},
	}
}

// checkpoint writes a checkpoint of a container into the root directory of the host, where only root reads it:
// it has the memory of the container.
func (n *Node) checkpoint(ctx context.Context, p *v1.Pod, container, id string, timeout int64) (string, error) {
	dir := path.Join(n.cfg.RootDirectory, "checkpoints")
	if err := n.host.MkdirAll(ctx, dir, 0o700, nil); err != nil {
		return "", err
	}
	at := path.Join(dir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", p.Name, p.Namespace, container, time.Now().UTC().Format(time.RFC3339)))
	return at, n.runtime.CheckpointContainer(ctx, id, at, time.Duration(min(timeout, int64(time.Hour/time.Second)))*time.Second)
}

func (n *Node) readLog(ctx context.Context, path string, opts *v1.PodLogOptions,
	running func(context.Context) (bool, error), stdout, stderr io.Writer) error {
	return logs.Read(ctx, n.host, path, opts, running, stdout, stderr)
}
