package labtest

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// AccountKubeconfig writes a kubeconfig with a token of a service account, and returns the token,
// which is valid for an hour.
func (l *Lab) AccountKubeconfig(ctx context.Context, namespace, account, file string) (token string, err error) {
	request, err := l.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["lab"] = &clientcmdapi.Cluster{Server: l.REST.Host, CertificateAuthority: l.REST.CAFile, CertificateAuthorityData: l.REST.CAData}
	c.AuthInfos[account] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	c.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: account}
	c.CurrentContext = "lab"
	return request.Status.Token, clientcmd.WriteToFile(*c, file)
}
