package mqtt

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/log"

	"github.com/gobridge/gobridge"
)

// pinger keeps the connection alive and notices when it is dead (D9). It sends a
// PINGREQ after one keep-alive without having sent or heard anything, and gives
// the connection up after one and a half without a byte from the broker. Every
// byte counts as a sign of life, and so does a pause of the reader that the
// session itself caused (V1).
type pinger struct {
	// lastSent is when bytes were last handed to the kernel, in Unix nanoseconds.
	lastSent atomic.Int64
}

var _ paho.Pinger = (*pinger)(nil)

// sent takes note of bytes that left.
func (p *pinger) sent() { p.lastSent.Store(time.Now().UnixNano()) }

// Run keeps conn alive until ctx ends. An error says that the connection is
// dead.
func (p *pinger) Run(ctx context.Context, conn net.Conn, keepAlive uint16) error {
	c, ok := conn.(*linkConn)
	if !ok || keepAlive == 0 {
		return nil
	}
	p.sent()
	interval := time.Duration(keepAlive) * time.Second
	k := keeper{interval: interval, alive: time.Now()}
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		now := time.Now()
		heard := c.lastRead()
		if c.paused() {
			heard = now
		}
		ping, dead, wait := k.check(now, time.Unix(0, p.lastSent.Load()), heard)
		if dead {
			err := &gobridge.Error{
				Code: gobridge.CodeConnectionLost, Class: gobridge.ClassTransient, Outage: true,
				Op: fmt.Sprintf("keep-alive: nothing heard from the broker for %s", now.Sub(k.alive).Round(time.Millisecond)),
			}
			c.fail(err)
			return err
		}
		if ping {
			c.append(func(dst []byte) []byte { return append(dst, pingreq, 0) })
			c.flush()
		}
		timer.Reset(wait)
	}
}

const pingreq = 0xC0

// keeper is the decision of the pinger, without clock and connection.
type keeper struct {
	interval time.Duration
	alive    time.Time // the latest sign of life
	pinged   time.Time // the latest PINGREQ
}

// check decides at now: send a PINGREQ, or give up, and how long to wait for
// the next check.
func (k *keeper) check(now, sent, heard time.Time) (ping, dead bool, wait time.Duration) {
	if heard.After(k.alive) {
		k.alive = heard
	}
	silence := k.alive.Add(k.interval * 3 / 2)
	if k.pinged.After(k.alive) {
		// A process that was stopped for a while gets its answer in.
		if limit := k.pinged.Add(k.interval / 2); limit.After(silence) {
			silence = limit
		}
		if !now.Before(silence) {
			return false, true, 0
		}
		if due := sent.Add(k.interval); due.After(now) && due.Before(silence) {
			return false, false, due.Sub(now)
		}
		return false, false, silence.Sub(now)
	}
	due := k.alive.Add(k.interval)
	if d := sent.Add(k.interval); d.Before(due) {
		due = d
	}
	if now.Before(due) {
		return false, false, due.Sub(now)
	}
	k.pinged = now
	return true, false, k.interval / 2
}

// PacketSent, PacketReceived, PingResp and SetDebug are part of paho.Pinger. The
// connection itself tells what they would.
func (p *pinger) PacketSent()         {}
func (p *pinger) PacketReceived()     {}
func (p *pinger) PingResp()           {}
func (p *pinger) SetDebug(log.Logger) {}
