package credentialprovider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	credentialapi "k8s.io/kubelet/pkg/apis/credentialprovider"
	"k8s.io/kubelet/pkg/apis/credentialprovider/install"

	"github.com/bowline-k8s/bowline/hint"
)

const (
	maxAnswer = 1 << 20 // of standard output
	// waitDelay is how long remaining child processes may hold the program's output open.
	waitDelay = 2 * time.Second
)

var (
	protocol = runtime.NewScheme()
	codecs   = serializer.NewCodecFactory(protocol, serializer.EnableStrict)
)

func init() { install.Install(protocol) }

// run runs the program once. The error contains none of its output: standard error may show a
// credential, too, so it is not read.
func (p Program) run(ctx context.Context, q question) (*credentialapi.CredentialProviderResponse, error) {
	request, err := encode(p.Config.APIVersion, q)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdout := &bounded{max: maxAnswer, full: cancel}
	cmd := exec.CommandContext(ctx, p.Path, p.Config.Args...)
	cmd.Stdin, cmd.Stdout = bytes.NewReader(request), stdout
	cmd.Env = os.Environ()
	for _, e := range p.Config.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	// Kill the program's child processes with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = waitDelay
	err = cmd.Run()
	switch {
	case stdout.over:
		return nil, fmt.Errorf("credential provider %s answered with more than %d bytes", p.Config.Name, maxAnswer)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("credential provider %s did not answer for image %s within %v", p.Config.Name, q.image, deadline)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, hint.Add(fmt.Errorf("credential provider %s failed for image %s: %w", p.Config.Name, q.image, err), "run it with such a request to see what it prints")
	}
	response, err := decode(stdout.kept, p.Config.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("credential provider %s: %w", p.Config.Name, err)
	}
	return response, nil
}

func encode(apiVersion string, q question) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return nil, errors.New("no JSON for credential providers")
	}
	version, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, err
	}
	request := &credentialapi.CredentialProviderRequest{Image: q.image, ServiceAccountToken: q.token, ServiceAccountAnnotations: q.annotations}
	data, err := runtime.Encode(codecs.EncoderForVersion(info.Serializer, version), request)
	if err != nil {
		return nil, errors.New("the request of a credential provider cannot be written") // the error may hold a token
	}
	return data, nil
}

// decode reads an answer strictly. The error contains nothing of it but a wrong apiVersion.
func decode(data []byte, apiVersion string) (*credentialapi.CredentialProviderResponse, error) {
	kind, err := json.DefaultMetaFactory.Interpret(data)
	if err != nil {
		return nil, errors.New("its answer is not JSON with an apiVersion and a kind")
	}
	if got := kind.GroupVersion().String(); got != apiVersion {
		return nil, fmt.Errorf("its answer has the apiVersion %.64q and not %q, which it was asked by", got, apiVersion)
	}
	object, _, err := codecs.UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, errors.New("its answer is not a CredentialProviderResponse of that version")
	}
	response, ok := object.(*credentialapi.CredentialProviderResponse)
	if !ok {
		return nil, errors.New("its answer is not a CredentialProviderResponse")
	}
	return response, nil
}

// bounded keeps the first max bytes that are written to it.
type bounded struct {
	kept []byte
	max  int
	over bool
	full func() // called when there is more
}

func (b *bounded) Write(data []byte) (int, error) {
	room := b.max - len(b.kept)
	b.kept = append(b.kept, data[:min(room, len(data))]...)
	if len(data) > room && !b.over {
		b.over = true
		b.full()
	}
	return len(data), nil
}
