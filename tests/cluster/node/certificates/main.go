// Certificates makes those of a cluster that lives for a test run: an authority, one for each server and each client,
// and the pair of keys that service accounts' tokens are signed with. All are X.509 version 3, as rustls wants them.
//
//	certificates DIR NAME=common-name[/organisation][,address or host]...
//
// Each NAME gets NAME.crt and NAME.key in DIR, beside ca.crt, ca.key and accounts.key, accounts.pub.
package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A clock may be a little behind; no run takes this long.
const (
	before = time.Hour
	valid  = 30 * 24 * time.Hour
)

type authority struct {
	dir         string
	certificate *x509.Certificate
	key         crypto.Signer
}

func main() {
	log.SetFlags(0)
	dir := os.Args[1]
	ca := newAuthority(dir)
	accounts := newKey()
	write(dir, "accounts.key", "EC PRIVATE KEY", must(x509.MarshalECPrivateKey(accounts)))
	write(dir, "accounts.pub", "PUBLIC KEY", must(x509.MarshalPKIXPublicKey(accounts.Public())))
	for _, order := range os.Args[2:] {
		ca.issue(order)
	}
}

func newAuthority(dir string) authority {
	key := newKey()
	template := template("sandgate-test-cluster", "")
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign
	signed := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	ca := authority{dir, must(x509.ParseCertificate(signed)), key}
	ca.write("ca", signed, key)
	return ca
}

func (ca authority) issue(order string) {
	name, subject, _ := strings.Cut(order, "=")
	parts := strings.Split(subject, ",")
	commonName, organisation, _ := strings.Cut(parts[0], "/")
	template := template(commonName, organisation)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, host := range parts[1:] {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		if address := net.ParseIP(host); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key := newKey()
	ca.write(name, must(x509.CreateCertificate(rand.Reader, template, ca.certificate, key.Public(), ca.key)), key)
}

func (ca authority) write(name string, certificate []byte, key *ecdsa.PrivateKey) {
	write(ca.dir, name+".crt", "CERTIFICATE", certificate)
	write(ca.dir, name+".key", "EC PRIVATE KEY", must(x509.MarshalECPrivateKey(key)))
}

func template(commonName, organisation string) *x509.Certificate {
	subject := pkix.Name{CommonName: commonName}
	if organisation != "" {
		subject.Organization = []string{organisation}
	}
	return &x509.Certificate{
		SerialNumber: must(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))),
		Subject:      subject,
		NotBefore:    time.Now().Add(-before),
		NotAfter:     time.Now().Add(valid),
	}
}

func newKey() *ecdsa.PrivateKey {
	return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
}

func write(dir, name, kind string, bytes []byte) {
	file := must(os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600))
	if err := pem.Encode(file, &pem.Block{Type: kind, Bytes: bytes}); err != nil {
		log.Fatal(err)
	}
	if err := file.Close(); err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
