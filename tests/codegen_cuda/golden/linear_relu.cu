// linear_relu

#include "po_device.h"

PO_KERNEL void __launch_bounds__(256) linear_relu_0(const float *__restrict__ x, const float *__restrict__ w, const float *__restrict__ b, float *out)
{
    PO_SHARED float w_tile[2048];
    PO_SHARED float x_tile[2048];
    const int i_block = (int)blockIdx.y * 32;  // i block
    const int j_block = (int)blockIdx.x * 32;  // j block
    const int row = (int)threadIdx.y;  // i in tile
    const int column = (int)threadIdx.x * 2;  // j in tile
    float y_tile[4];
#pragma unroll
    for (int i_own = 0; i_own < 2; ++i_own) {  // i
#pragma unroll
        for (int j_lane = 0; j_lane < 2; ++j_lane) {
            y_tile[i_own * 2 + j_lane] = 0.0f;
        }
    }
#pragma unroll
    for (int k_block = 0; k_block < 48; k_block += 16) {  // k block
        for (int i_place_all = (int)threadIdx.y * 16 + (int)threadIdx.x; i_place_all < 128; i_place_all += 256) {
            const int i_place = i_place_all / 4;
            const int k_place = i_place_all % 4 * 4;
            po_cp_async16_zfill(&x_tile[k_block / 16 % 4 * 512 + i_place * 16 + k_place], &x[(i_block + i_place) * 64 + k_block + k_place], i_block + i_place < 100);
        }
        for (int k_place_2_all = (int)threadIdx.y * 16 + (int)threadIdx.x; k_place_2_all < 128; k_place_2_all += 256) {
            const int k_place_2 = k_place_2_all / 8;
            const int j_place = k_place_2_all % 8 * 4;
            po_cp_async16(&w_tile[k_block / 16 % 4 * 512 + k_place_2 * 32 + j_place], &w[(k_block + k_place_2) * 96 + j_block + j_place]);
        }
        po_cp_commit();
    }
    for (int k_block = 0; k_block < 64; k_block += 16) {  // k block
        po_cp_wait<2>();
        __syncthreads();
        if (k_block + 48 < 64) {
            const int k_block_next = (k_block + 48) / 16 % 4;
            for (int i_place_all = (int)threadIdx.y * 16 + (int)threadIdx.x; i_place_all < 128; i_place_all += 256) {
                const int i_place = i_place_all / 4;
                const int k_place = i_place_all % 4 * 4;
                po_cp_async16_zfill(&x_tile[k_block_next * 512 + i_place * 16 + k_place], &x[(i_block + i_place) * 64 + k_block + 48 + k_place], i_block + i_place < 100);
            }
            for (int k_place_2_all = (int)threadIdx.y * 16 + (int)threadIdx.x; k_place_2_all < 128; k_place_2_all += 256) {
                const int k_place_2 = k_place_2_all / 8;
                const int j_place = k_place_2_all % 8 * 4;
                po_cp_async16(&w_tile[k_block_next * 512 + k_place_2 * 32 + j_place], &w[(k_block + 48 + k_place_2) * 96 + j_block + j_place]);
            }
        }
        po_cp_commit();
        const int k_block_slot = k_block / 16 % 4;
#pragma unroll
        for (int k_own = 0; k_own < 16; k_own += 4) {  // k
            float x_own[8];
#pragma unroll
            for (int i_own = 0; i_own < 2; ++i_own) {  // i
                po_unpack(&x_own[i_own * 4], po_load<4>(&x_tile[k_block_slot * 512 + (row + i_own * 16) * 16 + k_own]));
            }
#pragma unroll
            for (int k_lane = 0; k_lane < 4; ++k_lane) {  // k
                float w_own[2];
                po_unpack(&w_own[0], po_load<2>(&w_tile[k_block_slot * 512 + (k_own + k_lane) * 32 + column]));
#pragma unroll
                for (int i_own = 0; i_own < 2; ++i_own) {  // i
#pragma unroll
                    for (int j_lane = 0; j_lane < 2; ++j_lane) {  // j
                        y_tile[i_own * 2 + j_lane] += x_own[i_own * 4 + k_lane] * w_own[j_lane];
                    }
                }
            }
        }
    }
#pragma unroll
    for (int i_own = 0; i_own < 2; ++i_own) {  // i
        if (i_block + row + i_own * 16 < 100) {
            const po_vec<float, 2> b_v2 = po_load<2>(&b[j_block + column]);
            po_vec<float, 2> out_v2;
#pragma unroll
            for (int j_lane = 0; j_lane < 2; ++j_lane) {
                out_v2.v[j_lane] = po_max_nan(y_tile[i_own * 2 + j_lane] + b_v2.v[j_lane], 0.0f);
            }
            po_store<2>(&out[(i_block + row + i_own * 16) * 96 + j_block + column], out_v2);
        }
    }
}
PO_ENTRY(linear_relu_0)
