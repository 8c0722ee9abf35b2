// linear_relu

#include "po_device.h"

PO_KERNEL void __launch_bounds__(64) linear_relu_0(const float *__restrict__ x, const float *__restrict__ w, const float *__restrict__ b, float *__restrict__ out)
{
    const int i = (int)blockIdx.y;
    const int j_block = (int)blockIdx.x * 64;  // j block
    const int j = j_block + (int)threadIdx.x;
    if (j < 96) {
        float y;
        y = 0.0f;
        for (int k = 0; k < 64; ++k) {
            y += x[i * 64 + k] * w[k * 96 + j];
        }
        out[i * 96 + j] = po_max_nan(y + b[j], 0.0f);
    }
}
PO_ENTRY(linear_relu_0)
