// What the tests make the original's own Go client do; see test_fujin_go.py.
//
//	fujin_client ADDRESS COMMAND ARGUMENTS...
//
// It prints one line for each fact and ends with "ok"; whatever else happens ends it with another line and status 1.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ValerySidorin/fujin/client"
)

const patience = 60 * time.Second

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

// tlsSettings knows the server by an authority and shows a certificate, where the environment names files.
func tlsSettings() *tls.Config {
	settings := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"fujin"}}
	if file := os.Getenv("QUINTLOG_CA"); file != "" {
		authority, err := os.ReadFile(file)
		check(err)
		settings.InsecureSkipVerify = false
		settings.RootCAs = x509.NewCertPool()
		settings.RootCAs.AppendCertsFromPEM(authority)
		own, err := tls.LoadX509KeyPair(os.Getenv("QUINTLOG_CERT"), os.Getenv("QUINTLOG_KEY"))
		check(err)
		settings.Certificates = []tls.Certificate{own}
	}
	return settings
}

func main() {
	address, command, arguments := os.Args[1], os.Args[2], os.Args[3:]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	settings := tlsSettings()
	quiet := client.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	conn, err := client.Connect(ctx, address, settings, nil, quiet)
	check(err)
	commands := map[string]func(context.Context, *client.Conn, []string){
		"write": write, "large": large, "transactions": transactions, "push": push, "nack": nack, "fetch": fetch,
		"empty": empty, "unknown": unknown, "streams": streams, "idle": idle, "stopped": stopped,
		"first": first,
	}
	commands[command](ctx, conn, arguments)
	check(conn.Close())
	fmt.Println("ok")
}

// write TOPIC COUNT GOROUTINES: they share one writer; messages are "goroutine-number".
func write(_ context.Context, conn *client.Conn, arguments []string) {
	topic, count, goroutines := arguments[0], number(arguments[1]), number(arguments[2])
	writer, err := conn.ConnectWriter("")
	check(err)
	var group sync.WaitGroup
	for g := range goroutines {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := range count / goroutines {
				check(writer.Write(topic, fmt.Appendf(nil, "%d-%d", g, i)))
			}
		}()
	}
	group.Wait()
	check(writer.Close())
}

// large TOPIC: 1 MiB, then a byte more, which ends the stream; then another stream.
func large(_ context.Context, conn *client.Conn, arguments []string) {
	writer, err := conn.ConnectWriter("")
	check(err)
	check(writer.Write(arguments[0], bytes.Repeat([]byte("x"), 1<<20)))
	fmt.Println("too large:", writer.Write(arguments[0], bytes.Repeat([]byte("y"), 1<<20+1)))
	check(writer.Close())
	writer, err = conn.ConnectWriter("")
	check(err)
	check(writer.Write(arguments[0], []byte("after")))
	check(writer.Close())
}

// transactions TOPIC TOPIC: both outcomes over two topics, states that do not fit, one that is left open.
func transactions(_ context.Context, conn *client.Conn, arguments []string) {
	writer, err := conn.ConnectWriter("writer-1")
	check(err)
	for i := range 20 {
		check(writer.BeginTx())
		for _, topic := range arguments {
			check(writer.Write(topic, fmt.Appendf(nil, "%s-%d", topic, i)))
		}
		if i%2 == 0 {
			check(writer.CommitTx())
		} else {
			check(writer.RollbackTx())
		}
	}
	fmt.Println("commit outside:", writer.CommitTx())
	fmt.Println("rollback outside:", writer.RollbackTx())
	check(writer.BeginTx())
	fmt.Println("begin inside:", writer.BeginTx())
	check(writer.Write(arguments[0], []byte("never")))
	check(writer.Close())
}

// push TOPIC COUNT auto|manual: prints what came, in order.
func push(_ context.Context, conn *client.Conn, arguments []string) {
	count, isAuto := number(arguments[1]), arguments[2] == "auto"
	came := make(chan string, 2*count)
	config := client.SubscriberConfig{ReaderConfig: client.ReaderConfig{Topic: arguments[0], AutoCommit: isAuto}}
	subscriber, err := conn.ConnectSubscriber(config, func(message client.Msg) {
		text := message.String()
		check(message.Ack())
		came <- text
	})
	check(err)
	for range count {
		select {
		case text := <-came:
			fmt.Println(text)
		case <-time.After(patience):
			fmt.Println("nothing comes any more")
			os.Exit(1)
		}
	}
	check(subscriber.Close())
	for len(came) > 0 {
		fmt.Println(<-came)
	}
}

// nack TOPIC COUNT: each message is refused the first time.
func nack(_ context.Context, conn *client.Conn, arguments []string) {
	count := number(arguments[1])
	seen := map[string]int{}
	done := make(chan bool)
	config := client.SubscriberConfig{ReaderConfig: client.ReaderConfig{Topic: arguments[0]}}
	subscriber, err := conn.ConnectSubscriber(config, func(message client.Msg) {
		text := message.String()
		seen[text]++
		if seen[text] == 1 {
			check(message.Nack())
			return
		}
		check(message.Ack())
		fmt.Println(text, seen[text])
		if count--; count == 0 {
			close(done)
		}
	})
	check(err)
	select {
	case <-done:
	case <-time.After(patience):
		fmt.Println("nothing comes any more")
		os.Exit(1)
	}
	check(subscriber.Close())
}

// fetch TOPIC COUNT BATCH ack|leave: prints the messages, until there are COUNT.
func fetch(ctx context.Context, conn *client.Conn, arguments []string) {
	count, batch := number(arguments[1]), number(arguments[2])
	consumer, err := conn.ConnectConsumer(client.ReaderConfig{Topic: arguments[0]})
	check(err)
	for count > 0 {
		messages, err := consumer.Fetch(ctx, uint32(min(batch, count)))
		check(err)
		for _, message := range messages {
			if len(message.Value) > 100 {
				fmt.Println(len(message.Value))
			} else {
				fmt.Println(message.String())
			}
			if arguments[3] == "ack" {
				check(message.Ack())
			}
		}
		count -= len(messages)
	}
	check(consumer.Close())
}

// empty TOPIC: a FETCH that finds nothing is an error in time, and the consumer lives on.
func empty(ctx context.Context, conn *client.Conn, arguments []string) {
	consumer, err := conn.ConnectConsumer(client.ReaderConfig{Topic: arguments[0], AutoCommit: true})
	check(err)
	_, err = consumer.Fetch(ctx, 5)
	fmt.Println("nothing:", err)
	writer, err := conn.ConnectWriter("")
	check(err)
	check(writer.Write(arguments[0], []byte("something")))
	messages, err := consumer.Fetch(ctx, 5)
	check(err)
	for _, message := range messages {
		fmt.Println(message.String())
	}
	check(writer.Close())
	check(consumer.Close())
}

// unknown TOPIC: where topics are not made by themselves.
func unknown(_ context.Context, conn *client.Conn, arguments []string) {
	writer, err := conn.ConnectWriter("")
	check(err)
	fmt.Println("write:", writer.Write(arguments[0], []byte("x")))
	check(writer.Close())
	_, err = conn.ConnectConsumer(client.ReaderConfig{Topic: arguments[0]})
	fmt.Println("read:", err)
}

// streams TOPIC COUNT: so many writers at once on the connection. (No messages of one byte: the client loses its place
// in an answer to FETCH that has one before the last.)
func streams(_ context.Context, conn *client.Conn, arguments []string) {
	var writers []*client.Writer
	for range number(arguments[1]) {
		writer, err := conn.ConnectWriter("")
		check(err)
		writers = append(writers, writer)
	}
	for i, writer := range writers {
		check(writer.Write(arguments[0], fmt.Appendf(nil, "%04d", i)))
	}
	for _, writer := range writers {
		check(writer.Close())
	}
}

// idle TOPIC SECONDS: the connection outlives silence, by PING.
func idle(_ context.Context, conn *client.Conn, arguments []string) {
	writer, err := conn.ConnectWriter("")
	check(err)
	check(writer.Write(arguments[0], []byte("before")))
	time.Sleep(time.Duration(number(arguments[1])) * time.Second)
	check(writer.Write(arguments[0], []byte("after")))
	check(writer.Close())
}

// stopped TOPIC: writes until the server is stopped; prints how many were acknowledged.
func stopped(_ context.Context, conn *client.Conn, arguments []string) {
	writer, err := conn.ConnectWriter("")
	check(err)
	count := 0
	for {
		if err := writer.Write(arguments[0], fmt.Appendf(nil, "%06d", count)); err != nil {
			break
		}
		if count++; count == 1 {
			fmt.Println("begun")
		}
	}
	fmt.Println(count)
	check(writer.Close())
}

// first PREFIX TOPICS auto|manual SECONDS: a subscriber for each topic, at once; prints the topics whose first message came.
func first(_ context.Context, conn *client.Conn, arguments []string) {
	prefix, topics, isAuto, wait := arguments[0], number(arguments[1]), arguments[2] == "auto", number(arguments[3])
	writer, err := conn.ConnectWriter("")
	check(err)
	for i := range topics {
		check(writer.Write(fmt.Sprintf("%s-%d", prefix, i), []byte("first")))
	}
	came := make(chan int, 10*topics)
	for i := range topics {
		go func() {
			config := client.SubscriberConfig{
				ReaderConfig: client.ReaderConfig{Topic: fmt.Sprintf("%s-%d", prefix, i), AutoCommit: isAuto}}
			_, err := conn.ConnectSubscriber(config, func(message client.Msg) { came <- i })
			check(err)
		}()
	}
	seen := map[int]bool{}
	for len(seen) < topics {
		select {
		case i := <-came:
			seen[i] = true
		case <-time.After(time.Duration(wait) * time.Second):
			for i := range topics {
				if !seen[i] {
					fmt.Println("missing:", i)
				}
			}
			os.Exit(1)
		}
	}
	fmt.Println("all", topics)
	fmt.Println("ok")
	os.Exit(0) // closing that many subscribers takes long
}
