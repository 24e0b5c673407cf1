// What a test makes the original's own Go SDK do, through TLS with a client certificate; see test_originals_tls.py.
//
//	figg_client ADDRESS CA CERTIFICATE KEY TOPIC COUNT
//
// It publishes messages, reads them back from the beginning, prints each and ends with "ok".
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"time"

	figg "github.com/andydunstall/figg/sdk/go"
)

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func main() {
	authority, err := os.ReadFile(os.Args[2])
	check(err)
	settings := &tls.Config{RootCAs: x509.NewCertPool()}
	settings.RootCAs.AppendCertsFromPEM(authority)
	own, err := tls.LoadX509KeyPair(os.Args[3], os.Args[4])
	check(err)
	settings.Certificates = []tls.Certificate{own}
	client, err := figg.Connect(os.Args[1], figg.WithDialer(&tls.Dialer{Config: settings}))
	check(err)
	topic := os.Args[5]
	count, err := strconv.Atoi(os.Args[6])
	check(err)
	for number := 0; number < count; number++ {
		client.PublishWaitForACK(topic, []byte(strconv.Itoa(number)))
	}
	came := make(chan string, count)
	check(client.Subscribe(topic, func(m *figg.Message) { came <- string(m.Data) }, figg.WithOffset(0)))
	for number := 0; number < count; number++ {
		select {
		case text := <-came:
			fmt.Println(text)
		case <-time.After(20 * time.Second):
			fmt.Println("error: nothing comes")
			os.Exit(1)
		}
	}
	check(client.Close())
	fmt.Println("ok")
}
