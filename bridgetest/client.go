package bridgetest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

var (
	// ErrSessionLost completes a publish whose session the broker no longer had
	// when the client came back (Session Present 0): whether the broker took the
	// message is unknown.
	ErrSessionLost = errors.New("session lost")

	// ErrDisconnected completes what waits for an answer on a connection that ended.
	ErrDisconnected = errors.New("disconnected")
)

// maxQueuedBytes is where a flood of QoS 0 publishes starts to wait for the socket.
const maxQueuedBytes = 1 << 20

// Will is the message a broker publishes when the client vanishes.
type Will struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool
}

// ClientConfig says how a [Client] connects.
type ClientConfig struct {
	Addr           string // host:port
	ClientID       string // "" lets the broker choose one
	CleanStart     bool
	SessionExpiry  uint32        // seconds the broker keeps the session
	ReceiveMaximum uint16        // 0 sends none (the protocol's 65,535)
	MaxPacketSize  uint32        // 0 sends none
	KeepAlive      uint16        // seconds; 0 turns keep-alive off. A silent peer is given up after 1.5 times this
	Window         int           // own bound on unacknowledged publishes; the broker's Receive Maximum applies as well
	Timeout        time.Duration // dial, TLS and CONNACK together; defaults to 10 s
	Username       string
	Password       string
	TLS            *tls.Config
	Will           *Will

	// Session carries the client's half of the session state from one connection
	// to the next. Nil starts with none and completes every open publish with
	// ErrDisconnected when the connection ends.
	Session *Session

	// OnMessage is called on the reading goroutine, in the order of arrival. Nil
	// queues messages for [Client.Receive].
	OnMessage func(*Message)

	// ManualAck leaves PUBACK and PUBREC to [Message.Ack].
	ManualAck bool
}

// Ack is how a publish ended: the reason code of its PUBACK, of a refusing PUBREC
// or of its PUBCOMP; or the error that kept the answer away.
type Ack struct {
	Reason byte
	Resent int // times the PUBLISH was sent again with DUP
	Err    error
}

// ConnackError is a refused CONNECT.
type ConnackError struct {
	Code byte // MQTT v5 section 3.2.2.2
}

// Error implements error.
func (e *ConnackError) Error() string { return fmt.Sprintf("CONNECT refused: reason 0x%02X", e.Code) }

// Client is a minimal MQTT v5 client for tests, one connection long: it never
// reconnects by itself. Its methods may be called concurrently.
type Client struct {
	cfg     ClientConfig
	conn    net.Conn
	tcp     *net.TCPConn
	out     *sendQueue
	connack *packets.Connack
	session *Session
	window  int

	wg   sync.WaitGroup
	done chan struct{} // closed when the reading goroutine ended

	mu         sync.Mutex
	err        error // why the connection ended
	disconnect *packets.Disconnect
	replies    map[uint16]chan *packets.ControlPacket // SUBACK and UNSUBACK by packet id
	nextReply  uint16
	inbox      []*Message
	arrived    chan struct{} // signals one or more messages in inbox
}

// MustConnect is Connect that ends the test on an error and closes the client in
// its Cleanup.
func MustConnect(t testing.TB, cfg ClientConfig) *Client {
	t.Helper()
	c, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatalf("connect %q to %s: %v", cfg.ClientID, cfg.Addr, err)
	}
	t.Cleanup(c.Close)
	return c
}

// Connect dials, exchanges CONNECT and CONNACK, and sends again what cfg.Session
// holds open, in its first order, if the broker still has the session. A refusal is
// a *[ConnackError].
func Connect(ctx context.Context, cfg ClientConfig) (*Client, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg: cfg, conn: raw, tcp: raw.(*net.TCPConn), session: cfg.Session,
		done: make(chan struct{}), arrived: make(chan struct{}, 1),
		replies: make(map[uint16]chan *packets.ControlPacket),
	}
	if c.session == nil {
		c.session = NewSession()
	}
	// The context bounds every step; closing the socket is what interrupts a read.
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()

	if cfg.TLS != nil {
		tlsConn := tls.Client(raw, cfg.TLS)
		if err := tlsConn.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, fmt.Errorf("TLS handshake with %s: %w", cfg.Addr, err)
		}
		c.conn = tlsConn
	}
	reader := bufio.NewReaderSize(c.conn, 64<<10)
	if err := c.handshake(reader); err != nil {
		_ = raw.Close()
		return nil, err
	}
	c.out = newSendQueue(c.conn)
	c.session.attach(c)
	c.wg.Go(c.out.run)
	c.wg.Go(func() { c.read(reader) })
	if cfg.KeepAlive > 0 {
		c.wg.Go(c.ping)
	}
	return c, nil
}

func (c *Client) handshake(reader *bufio.Reader) error {
	cfg := c.cfg
	connect := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: cfg.ClientID, CleanStart: cfg.CleanStart, KeepAlive: cfg.KeepAlive,
		Properties:   &packets.Properties{},
		UsernameFlag: cfg.Username != "", Username: cfg.Username,
		PasswordFlag: cfg.Password != "", Password: []byte(cfg.Password),
	}
	if cfg.SessionExpiry > 0 {
		connect.Properties.SessionExpiryInterval = &cfg.SessionExpiry
	}
	if cfg.ReceiveMaximum > 0 {
		connect.Properties.ReceiveMaximum = &cfg.ReceiveMaximum
	}
	if cfg.MaxPacketSize > 0 {
		connect.Properties.MaximumPacketSize = &cfg.MaxPacketSize
	}
	if w := cfg.Will; w != nil {
		connect.WillFlag, connect.WillTopic, connect.WillMessage = true, w.Topic, w.Payload
		connect.WillQOS, connect.WillRetain, connect.WillProperties = w.QoS, w.Retain, &packets.Properties{}
	}
	if _, err := connect.WriteTo(c.conn); err != nil {
		return fmt.Errorf("send CONNECT: %w", err)
	}
	answer, err := readPacket(reader)
	if err != nil {
		return fmt.Errorf("wait for CONNACK: %w", err)
	}
	connack, ok := answer.Content.(*packets.Connack)
	if !ok {
		return fmt.Errorf("wait for CONNACK: got %s", answer.PacketType())
	}
	if connack.ReasonCode >= 0x80 {
		return &ConnackError{Code: connack.ReasonCode}
	}
	c.connack = connack
	c.window = 65535
	if m := connack.Properties.ReceiveMaximum; m != nil {
		c.window = int(*m)
	}
	if cfg.Window > 0 {
		c.window = min(c.window, cfg.Window)
	}
	return nil
}

// Connack returns the broker's answer to CONNECT.
func (c *Client) Connack() *packets.Connack { return c.connack }

// Done is closed when the connection has ended; [Client.Err] then says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns what ended the connection, nil while it lives.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Disconnected returns the DISCONNECT the broker sent, or nil.
func (c *Client) Disconnected() *packets.Disconnect {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.disconnect
}

// Close sends DISCONNECT (normal), closes the connection and waits for the client's
// goroutines. It may be called again.
func (c *Client) Close() {
	_ = c.conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
	_ = c.out.put(&packets.Disconnect{})
	c.out.close()
	c.wg.Wait()
}

// Abort resets the connection without DISCONNECT, as a crashed client would, and
// waits for the client's goroutines.
func (c *Client) Abort() {
	_ = c.tcp.SetLinger(0)
	_ = c.tcp.Close() // not the TLS layer, which would say goodbye
	c.wg.Wait()
}

// Subscribe sends one SUBSCRIBE and returns the reason code of each filter.
func (c *Client) Subscribe(ctx context.Context, filters ...packets.SubOptions) ([]byte, error) {
	answer, err := c.ask(ctx, func(id uint16) packets.Packet {
		return &packets.Subscribe{PacketID: id, Properties: &packets.Properties{}, Subscriptions: filters}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	suback, ok := answer.Content.(*packets.Suback)
	if !ok {
		return nil, fmt.Errorf("subscribe: got %s", answer.PacketType())
	}
	return suback.Reasons, nil
}

// Unsubscribe sends one UNSUBSCRIBE and returns the reason code of each filter.
func (c *Client) Unsubscribe(ctx context.Context, filters ...string) ([]byte, error) {
	answer, err := c.ask(ctx, func(id uint16) packets.Packet {
		return &packets.Unsubscribe{PacketID: id, Properties: &packets.Properties{}, Topics: filters}
	})
	if err != nil {
		return nil, fmt.Errorf("unsubscribe: %w", err)
	}
	unsuback, ok := answer.Content.(*packets.Unsuback)
	if !ok {
		return nil, fmt.Errorf("unsubscribe: got %s", answer.PacketType())
	}
	return unsuback.Reasons, nil
}

// ask sends a packet that carries an id and waits for the answer with that id. The
// ids come from the range 65,000 and up, which publishes leave free.
func (c *Client) ask(ctx context.Context, packet func(id uint16) packets.Packet) (*packets.ControlPacket, error) {
	answer := make(chan *packets.ControlPacket, 1)
	c.mu.Lock()
	id := lastPublishID + 1 + c.nextReply%500
	c.nextReply++
	c.replies[id] = answer
	c.mu.Unlock()
	if err := c.out.put(packet(id)); err != nil {
		return nil, err
	}
	select {
	case p := <-answer:
		return p, nil
	case <-c.done:
		return nil, errors.Join(ErrDisconnected, c.Err())
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Publish sends p and waits for its acknowledgement. A reason code that refuses the
// message is in the Ack, not an error.
func (c *Client) Publish(ctx context.Context, p *packets.Publish) (Ack, error) {
	acked := make(chan Ack, 1)
	if err := c.PublishAsync(ctx, p, func(a Ack) { acked <- a }); err != nil {
		return Ack{}, err
	}
	select {
	case a := <-acked:
		return a, a.Err
	case <-ctx.Done():
		return Ack{}, ctx.Err()
	}
}

// PublishAsync queues p and returns; it waits only while the window is full. The
// packet id is chosen here and p must not be changed afterwards. done (nil for
// none) is called once: at once for QoS 0, else on the reading goroutine, and must
// not block. A non-nil error means that p was not sent and done is not called.
func (c *Client) PublishAsync(ctx context.Context, p *packets.Publish, done func(Ack)) error {
	if err := c.out.waitRoom(maxQueuedBytes); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if p.Properties == nil {
		p.Properties = &packets.Properties{}
	}
	if p.QoS > 0 {
		return c.session.publish(ctx, c, p, done)
	}
	if err := c.out.put(p); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if done != nil {
		done(Ack{})
	}
	return nil
}

// Receive returns the next message, in order of arrival. Messages that had arrived
// before the connection ended are still returned.
func (c *Client) Receive(ctx context.Context) (*Message, error) {
	for {
		c.mu.Lock()
		if len(c.inbox) > 0 {
			m := c.inbox[0]
			c.inbox = c.inbox[1:]
			c.mu.Unlock()
			return m, nil
		}
		c.mu.Unlock()
		select {
		case <-c.arrived:
		case <-c.done:
			c.mu.Lock()
			left := len(c.inbox)
			c.mu.Unlock()
			if left == 0 {
				return nil, errors.Join(ErrDisconnected, c.Err())
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// MustReceive is Receive that ends the test when no message comes within timeout.
func (c *Client) MustReceive(t testing.TB, timeout time.Duration) *Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	m, err := c.Receive(ctx)
	if err != nil {
		t.Fatalf("client %q: no message within %v: %v", c.cfg.ClientID, timeout, err)
	}
	return m
}
