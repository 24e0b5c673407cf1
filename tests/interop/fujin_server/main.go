// The original's own server in front of a broker in its memory; see test_fujin_original.py.
//
//	fujin_server CERTIFICATE KEY PING_INTERVAL_MS TOPIC...
//
// Every topic is a writer's and a reader's name. Streams that read a topic share its messages; what was not acknowledged
// goes back to the front when its stream ends, and with NACK. A transaction's messages are there with its COMMIT. The
// server logs to standard output, its address among the first lines.
package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/ValerySidorin/fujin/internal/server/fujin"
	"github.com/ValerySidorin/fujin/public/connectors"
	"github.com/ValerySidorin/fujin/public/connectors/reader"
	readers "github.com/ValerySidorin/fujin/public/connectors/reader/config"
	"github.com/ValerySidorin/fujin/public/connectors/writer"
	writers "github.com/ValerySidorin/fujin/public/connectors/writer/config"
	"github.com/ValerySidorin/fujin/public/server"
	"github.com/ValerySidorin/fujin/public/server/config"
	"github.com/quic-go/quic-go"
)

const idBytes = 8

var (
	errState   = errors.New("no transaction")
	errUnknown = errors.New("unknown id")
)

type message struct {
	id    uint64
	value []byte
}

// topic is a queue: the lowest id first, and who waits is woken by whatever is added.
type topic struct {
	lock    sync.Mutex
	added   chan struct{}
	next    uint64
	waiting []message
}

func (t *topic) publish(values [][]byte) {
	t.lock.Lock()
	defer t.lock.Unlock()
	for _, value := range values {
		t.waiting = append(t.waiting, message{t.next, value})
		t.next++
	}
	t.wake()
}

func (t *topic) giveBack(given message) {
	t.lock.Lock()
	defer t.lock.Unlock()
	at := 0
	for at < len(t.waiting) && t.waiting[at].id < given.id {
		at++
	}
	t.waiting = append(t.waiting[:at], append([]message{given}, t.waiting[at:]...)...)
	t.wake()
}

func (t *topic) wake() {
	close(t.added)
	t.added = make(chan struct{})
}

// take waits for at least one message; none when ctx is over.
func (t *topic) take(ctx context.Context, most int) []message {
	for {
		t.lock.Lock()
		count := min(most, len(t.waiting))
		taken := append([]message(nil), t.waiting[:count]...)
		t.waiting = t.waiting[count:]
		added := t.added
		t.lock.Unlock()
		if count > 0 {
			return taken
		}
		select {
		case <-ctx.Done():
			return nil
		case <-added:
		}
	}
}

type memoryWriter struct {
	topic    *topic
	isOpen   bool
	gathered [][]byte
}

func (w *memoryWriter) Write(_ context.Context, value []byte, callback func(error)) {
	kept := append([]byte(nil), value...)
	if w.isOpen {
		w.gathered = append(w.gathered, kept)
	} else {
		w.topic.publish([][]byte{kept})
	}
	callback(nil)
}

func (w *memoryWriter) BeginTx(context.Context) error {
	w.isOpen = true
	return nil
}

func (w *memoryWriter) CommitTx(context.Context) error {
	if !w.isOpen {
		return errState
	}
	w.topic.publish(w.gathered)
	return w.RollbackTx(nil)
}

func (w *memoryWriter) RollbackTx(context.Context) error {
	w.isOpen, w.gathered = false, nil
	return nil
}

func (w *memoryWriter) Flush(context.Context) error { return nil }
func (w *memoryWriter) Endpoint() string            { return "memory" }
func (w *memoryWriter) Close() error                { return nil }

type memoryReader struct {
	topic  *topic
	isAuto bool
	ctx    context.Context
	close  context.CancelFunc
	lock   sync.Mutex
	held   map[uint64]message
}

func newReader(topic *topic, isAuto bool) *memoryReader {
	ctx, cancel := context.WithCancel(context.Background())
	return &memoryReader{topic: topic, isAuto: isAuto, ctx: ctx, close: cancel, held: map[uint64]message{}}
}

func (r *memoryReader) hand(given message, handler func([]byte, string, ...any)) {
	if r.isAuto {
		handler(given.value, "")
		return
	}
	r.lock.Lock()
	if r.ctx.Err() == nil {
		r.held[given.id] = given
	} else { // its stream has ended meanwhile
		r.topic.giveBack(given)
	}
	r.lock.Unlock()
	handler(given.value, "", given.id)
}

func (r *memoryReader) Subscribe(ctx context.Context, handler func([]byte, string, ...any)) error {
	for {
		taken := r.topic.take(ctx, 1)
		if taken == nil {
			return nil
		}
		r.hand(taken[0], handler)
	}
}

func (r *memoryReader) Fetch(
	_ context.Context, count uint32, answer func(uint32, error), handler func([]byte, string, ...any),
) {
	taken := r.topic.take(r.ctx, int(count)) // the server cancels its own one only at the connection's end
	answer(uint32(len(taken)), nil)
	for _, given := range taken {
		r.hand(given, handler)
	}
}

func (r *memoryReader) settle(ids [][]byte, answer func(error), result func([]byte, error), again bool) {
	answer(nil)
	for _, raw := range ids {
		id := binary.BigEndian.Uint64(raw)
		r.lock.Lock()
		given, found := r.held[id]
		delete(r.held, id)
		r.lock.Unlock()
		if !found {
			result(raw, errUnknown)
			continue
		}
		if again {
			r.topic.giveBack(given)
		}
		result(raw, nil)
	}
}

func (r *memoryReader) Ack(_ context.Context, ids [][]byte, answer func(error), result func([]byte, error)) {
	r.settle(ids, answer, result, false)
}

func (r *memoryReader) Nack(_ context.Context, ids [][]byte, answer func(error), result func([]byte, error)) {
	r.settle(ids, answer, result, true)
}

func (r *memoryReader) Close() {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.close()
	for _, given := range r.held {
		r.topic.giveBack(given)
	}
	r.held = map[uint64]message{}
}

func (r *memoryReader) MsgIDStaticArgsLen() int { return idBytes }
func (r *memoryReader) IsAutoCommit() bool      { return r.isAuto }
func (r *memoryReader) EncodeMsgID(buf []byte, _ string, arguments ...any) []byte {
	return binary.BigEndian.AppendUint64(buf, arguments[0].(uint64))
}

func main() {
	interval, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	certificate, err := tls.LoadX509KeyPair(os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	topics := map[string]*topic{}
	names := connectors.Config{Readers: map[string]readers.Config{}, Writers: map[string]writers.Config{}}
	for _, name := range os.Args[4:] {
		topics[name] = &topic{added: make(chan struct{})}
		settings := map[string]any{"topic": name}
		names.Readers[name] = readers.Config{Protocol: "memory", Settings: settings}
		names.Writers[name] = writers.Config{Protocol: "memory", Settings: settings}
	}
	topicOf := func(settings any) *topic { return topics[settings.(map[string]any)["topic"].(string)] }
	writer.RegisterWriterFactory("memory", func(settings any, _ string, _ *slog.Logger) (writer.Writer, error) {
		return &memoryWriter{topic: topicOf(settings)}, nil
	}, func(map[string]any) string { return "memory" })
	reader.RegisterReaderFactory("memory", func(settings any, isAuto bool, _ *slog.Logger) (reader.Reader, error) {
		return newReader(topicOf(settings), isAuto), nil
	})
	made, err := server.NewServer(config.Config{
		Connectors: names,
		Fujin: fujin.ServerConfig{
			Addr:                  "127.0.0.1:0",
			PingInterval:          time.Duration(interval) * time.Millisecond,
			PingTimeout:           5 * time.Second,
			ForceTerminateTimeout: time.Second,
			TLS:                   &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"fujin"}},
			QUIC:                  &quic.Config{MaxIncomingStreams: 1000},
		},
	}, slog.New(slog.NewTextHandler(os.Stdout, nil)))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	if err := made.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
