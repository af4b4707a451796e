// Command cert-manager runs cert-manager's own controllers, as many of them as make a self-signed authority and sign by it: what
// its published controller runs of them, too. That program cannot be built from what the project publishes as modules.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file that says where the API server is")
	namespace := flag.String("cluster-resource-namespace", "cert-manager", "where secrets of ClusterIssuers are")
	flag.Parse()
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ended, *kubeconfig, *namespace); err != nil {
		log.Fatal(err)
	}
}

// run starts every controller that an import has made known, and returns when the first has failed or all have ended.
func run(ended context.Context, kubeconfig, namespace string) error {
	factory, err := controller.NewContextFactory(ended, controller.ContextOptions{
		Kubeconfig:    kubeconfig,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: namespace},
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	})
	if err != nil {
		return err
	}
	known := controller.Known()
	ends := make(chan error, len(known))
	var all []controller.Interface
	for name, construct := range known {
		one, err := construct(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, one)
	}
	// Informers begin when each controller has said which it needs.
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	shared.SharedInformerFactory.Start(ended.Done())
	shared.KubeSharedInformerFactory.Start(ended.Done())
	for _, one := range all {
		go func() { ends <- one.Run(1, ended) }()
	}
	for range all {
		if err := <-ends; err != nil {
			return err
		}
	}
	return nil
}
